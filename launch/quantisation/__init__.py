"""Post-training quantisation: weights of a trained model in fewer bits.

* `settings`: what is stored how.
* `calibration`: what the model's layers see of a text.
* `encoding`: the nearest numbers of a format, and their scales.
* `quantise`: a model with narrow kernels; `report`: what that costs in accuracy.
"""
