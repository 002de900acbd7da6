# docker build -t tern . && docker run --rm -v "$PWD/runs:/runs" tern tern-translate train --data /data/embedded --src de --tgt en --preset quick --out /runs/quick
# The first stage makes the .deb, with the library for each level of x86-64; the second has it and nothing of the build.
FROM debian:12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ cmake ninja-build dpkg-dev file libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libgloo-dev \
      libeigen3-dev && \
    rm -rf /var/lib/apt/lists/*
COPY . /tern
WORKDIR /tern
RUN cmake --preset package && cmake --build --preset package && cd build/package && cpack -G DEB && mv tern*.deb /tern.deb

FROM debian:12-slim
COPY --from=build /tern.deb /tmp/tern.deb
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/tern.deb && rm -rf /var/lib/apt/lists/* /tmp/tern.deb
COPY data/embedded /data/embedded
CMD ["tern-translate", "--help"]
