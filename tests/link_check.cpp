// The main function of the programs that link one library's objects with the libraries below it.
int main() {}
