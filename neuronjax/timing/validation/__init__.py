"""Public measurements beside what the model predicts.

* `points`: the measurements, as published, with their sources.
* `programs`: the kernels that were measured, as programs.
* `predictions`: the prediction of every point.
* `report`: ratios, errors by group, text and JSON.
"""
