"""The workshop: checkpoints that fit (`quantize`) and are right (`audit`, `repair`), and images (`images`).

Headers are read by `facts`, bytes by `edge`; the kernels between them are pure. Judgements over headers stand
in `facts` and `rules`, so that `plan` and `up` use them without importing upward. It never changes what runs:
`bench.upgrade` does that. Import from `audit`, `repair`, and the modules of `quantize`, `kernels` and
`images`.
"""
