"""The best way to divide a training run over machines: `neuronjax plan`."""
