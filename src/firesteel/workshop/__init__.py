"""The workshop: `quantize` makes checkpoints that fit, `audit` finds what is wrong with one, `repair` mends it.

Headers are read by `facts`, bytes by `edge`; the kernels between them are pure. Judgements over the headers of
a checkpoint stand in `facts` and `rules`, so that `plan` and `up` use them without importing upward.
"""
