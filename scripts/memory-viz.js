#!/usr/bin/env node
// Loads memory snapshots with the reader of pytorch.org/memory_viz itself and prints the peak that its page draws; beside rows of
// `tern-bench memory --json`, fails where that is not the allocator's peak.
//
//   node scripts/memory-viz.js MemoryViz.js [--rows ROWS.jsonl] SNAPSHOT.pickle...
//
// MemoryViz.js is the page's program: torch/utils/viz/MemoryViz.js in PyTorch's repository.
'use strict';

const fs = require('fs');
const path = require('path');

function fail(message) {
  console.error(`memory-viz.js: ${message}`);
  process.exit(2);
}

function read(file) {
  try {
    return fs.readFileSync(file);
  } catch (error) {
    return fail(`${file}: ${error.code}`);
  }
}

/// The page's functions, without the part that builds the page.
function pageFunctions(file) {
  const text = read(file).toString();
  const end = text.indexOf('const kinds = {');
  if (end < 0) fail(`${file}: expected PyTorch's MemoryViz.js, with "const kinds = {" behind its functions`);
  const functions = text.slice(0, end).replace(/^import .*$/gm, '');
  return new Function(`${functions}\nreturn {unpickle, annotate_snapshot, process_alloc_data};`)();
}

/// Of blocks from before the trace that live at its end the page counts the bytes asked for, and not those that they take.
function uncounted(snapshot, device) {
  const made = new Set();
  for (const event of snapshot.device_traces[device]) {
    if (event.action === 'alloc') made.add(event.addr);
    if (event.action.startsWith('free')) made.delete(event.addr);
  }
  const blocks = snapshot.segments.filter((s) => s.device === device).flatMap((s) => s.blocks);
  return blocks.filter((b) => b.state === 'active_allocated' && !made.has(b.addr)).reduce((sum, b) => sum + b.size - b.requested_size, 0);
}

const args = process.argv.slice(2);
const rows = new Map();
const at = args.indexOf('--rows');
if (at >= 0) {
  for (const line of read(args.splice(at, 2)[1] ?? fail('--rows: expected a file')).toString().split('\n').filter(Boolean)) {
    const row = JSON.parse(line);
    rows.set(`${row.model}-T${row.T}-${row.dtype}-${row.pass}.pickle`, row);
  }
}
if (args.length < 2) fail('expected MemoryViz.js and snapshots: node scripts/memory-viz.js MemoryViz.js [--rows ROWS.jsonl] SNAPSHOT.pickle...');
const page = pageFunctions(args[0]);
for (const file of args.slice(1)) {
  const bytes = read(file);
  const snapshot = page.unpickle(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  page.annotate_snapshot(snapshot);
  snapshot.device_traces.forEach((trace, device) => {
    if (trace.length === 0) return;
    const drawn = page.process_alloc_data(snapshot, device, false, 15000);
    console.log(`${path.basename(file)}: device ${device}, ${trace.length} events, ${drawn.elements_length} blocks, peak ${drawn.max_size} bytes`);
    const row = rows.get(path.basename(file));
    const counted = drawn.max_size + uncounted(snapshot, device);
    if (row && counted + row.before_bytes !== row.peak_bytes) {
      console.error(`memory-viz.js: ${file}: expected a peak of ${row.peak_bytes - row.before_bytes} bytes but the page has ${counted}`);
      process.exitCode = 1;
    }
  });
}
