"""All checks over one checkpoint."""

from __future__ import annotations

from firesteel.facts.model.contents import CheckpointContents
from firesteel.rules.checkpoint_checks.checks import CheckpointFinding
from firesteel.rules.checkpoint_checks.config import check_config
from firesteel.rules.checkpoint_checks.files import check_files
from firesteel.rules.checkpoint_checks.gguf import check_gguf
from firesteel.rules.checkpoint_checks.quantization import check_quantization
from firesteel.rules.checkpoint_checks.scales import check_scales
from firesteel.rules.checkpoint_checks.subject import AuditSubject
from firesteel.rules.checkpoint_checks.tokenizer import check_tokenizer
from firesteel.rules.rule import SEVERITY

_FOR_SAFETENSORS = (check_files, check_config, check_quantization, check_scales, check_tokenizer)
_FOR_GGUF = (check_files, check_gguf)


def judge(checkpoint: CheckpointContents | AuditSubject) -> tuple[CheckpointFinding, ...]:
    """Every finding, the most severe first, then in the order of the checks."""
    subject = checkpoint if isinstance(checkpoint, AuditSubject) else AuditSubject(checkpoint)
    checks = _FOR_GGUF if subject.contents.format == "gguf" else _FOR_SAFETENSORS
    findings = [found for check in checks for found in check(subject)]
    return tuple(sorted(findings, key=lambda found: SEVERITY[found.level]))
