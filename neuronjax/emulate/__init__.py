"""The emulator: runs a `Program` on byte-addressed memories, instruction by instruction."""
