"""The README's example of the library alone: runs without the serving system and says what transformers says."""

import re
import subprocess
import sys
from pathlib import Path

from goose_ray.config import EMBEDDED_MODEL
from goose_ray.models.loader import resolve

ROOT = Path(__file__).parents[2]
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

# What a plain environment does not have.
BLOCKED = ("deepspeed", "fastapi", "goose_ray", "numba", "pydantic", "ray")
PROLOGUE = f"""
import sys
for name in {BLOCKED}:
    sys.modules[name] = None
"""
EPILOGUE = """
expected = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False)[0, len(prompt):].tolist()
assert reply == expected, (reply, expected)
steps = 0
forward = model.forward
def counted(*args, **kwargs):
    global steps
    steps += 1
    return forward(*args, **kwargs)
model.forward = counted
assert generate(model, prompt, 48, Speculator(policy="balanced"), stop={tokenizer.eos_token_id}) == expected
stop, until = {expected[20]}, expected.index(expected[20]) + 1
assert generate(model, prompt, 48, Speculator(policy="goose"), stop=stop) == expected[:until]
print("steps", steps)
"""


def example() -> str:
    section = (ROOT / "README.md").read_text().split("## The library alone")[1].split("\n## ")[0]
    [code] = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert isinstance(code, str)
    return code


def test_the_example_is_exact_where_nothing_else_is_installed() -> None:
    code = example()
    assert HUB_ID in code
    code = code.replace(HUB_ID, str(resolve(EMBEDDED_MODEL)))
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code + EPILOGUE], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout.split("steps")[-1])
    # Of the two counted replies, together more than 48 tokens long, most tokens were drafted.
    assert steps < 24, done.stdout
