"""The workshop: makes checkpoints that fit (`quantize`), finds their faults (`audit`), mends them (`repair`).

Headers are read by `facts`, bytes by `edge`; the kernels between them are pure. Judgements over headers stand
in `facts` and `rules`, so that `plan` and `up` use them without importing upward.
"""
