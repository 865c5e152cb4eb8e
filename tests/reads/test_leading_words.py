"""Words in front of an engine: those that run it, and those that only speak of it."""

from __future__ import annotations

import pytest

from firesteel.reads import programs
from firesteel.reads.leading_words import run_the_next

RUN = """
sudo
sudo -u llm nohup
sudo -E env HF_HOME=/x
exec
nice -n 5 ionice -c 3
taskset -c 0-3
numactl --cpunodebind 0 --membind=0
timeout -k 5 600
setsid stdbuf -oL -eL
uv run
uv tool run
uv run --with vllm --
conda run -n vllm --no-capture-output
nsys profile -o out --delay 60 -t cuda
srun -N 2 --gres gpu:8
ssh -p 22 spark-2
docker exec -it server
docker compose run --rm -e A=b --service-ports llm
kubectl exec -it pod -n models --
if !
$SUDO
docker compose -f a.yml exec -T --user root llm
+
wsl -d Ubuntu --
""".strip().splitlines()
SPEAK = """
systemctl restart
sudo systemctl edit
sudo -E systemctl status
journalctl -u
docker stats
docker logs -f
docker exec
docker compose logs
cmake --build build --target
command -v
[ -x
pkill -f
Get-Process
ln -sf
for binary in
./launch-cluster.sh -t image exec
the new
""".strip().splitlines()


@pytest.mark.parametrize("words", RUN)
def test_they_run_the_program(words: str) -> None:
    assert run_the_next(words.split())
    assert programs.find((*words.split(), "llama-server", "-m", "m.gguf")) == ("engine", len(words.split()))


@pytest.mark.parametrize("words", SPEAK)
def test_they_only_name_it(words: str) -> None:
    assert not run_the_next(words.split())
    assert programs.find((*words.split(), "llama-server", "--full")) is None


def test_a_sentence_that_begins_with_its_name() -> None:
    assert programs.find(("llama-server", "accepts", "--foo-bar", "too")) is None
    assert programs.find(("llama-server",)) == ("engine", 0)
