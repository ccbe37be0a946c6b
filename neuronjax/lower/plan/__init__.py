"""Plans of where the values between kernels lie, and when kernels run.

* `layouts`: results in the order in which products read them; `frames`: within their padding.
* `homes`: in the place of what they replace; `order`: kernels so that this needs no copies.
"""
