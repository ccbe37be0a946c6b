"""Where accuracy goes: a program on the chip's numerics beside the same program in FP64."""
