"""The workshop: makes checkpoints that fit (`quantize`), finds what is wrong (`audit`), mends it (`repair`).

Headers are read by `facts`, bytes by `edge`; the kernels between them are pure. Judgements over headers stand
in `facts` and `rules`, so that `plan` and `up` use them without importing upward.
"""
