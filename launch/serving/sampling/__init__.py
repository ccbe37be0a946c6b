"""The choice of tokens on the device: `state` of every slot, `variants` of the program, `draw`."""
