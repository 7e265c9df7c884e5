"""The wasm engine: interpreters compiled to WebAssembly, each run in a process of its own."""
