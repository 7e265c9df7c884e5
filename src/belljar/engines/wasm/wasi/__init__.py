"""WASI preview 1, written for walls: every file is in memory, every number is checked.

wasmtime brings an implementation too. It keeps threads of its own, and a process with threads
cannot be forked in the middle of a call (docs/adr/0008-wasm-forks-inside-a-call.md); it works on
folders of the host, whose size nobody bounds; and a sleep in it cannot be interrupted.
"""
