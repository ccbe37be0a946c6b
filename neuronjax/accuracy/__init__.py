"""The loss of accuracy: a program in the chip's numerics compared with the same one in FP64."""
