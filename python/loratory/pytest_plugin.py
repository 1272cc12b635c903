"""The pytest plugin: the fixture `lora_case`, and which cases it goes through.

    @pytest.mark.lora_claims(weight_dtypes=["bf16"], max_rank=64)
    def test_my_kernel(lora_case):
        assert_matches_reference(lora_case, lora_case.run(my_linear))

--lora-cases N draws N cases, --lora-seed S others, --lora-case LABEL replays one.
"""
from __future__ import annotations

from typing import cast

import pytest

__all__ = ["lora_case"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("loratory", "LoRA kernels")
    group.addoption("--lora-cases", type=int, default=20, metavar="N",
                    help="cases of every test with the fixture lora_case (default 20)")
    group.addoption("--lora-seed", type=int, default=1, metavar="S",
                    help="of the cases that are drawn (default 1)")
    group.addoption("--lora-case", action="append", default=[], metavar="LABEL",
                    help="these cases alone, as a failure names them; may be repeated")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "lora_claims(**fields): what the kernel under test takes, fields of "
                   "loratory.Claims")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lora_case" not in metafunc.fixturenames:
        return
    from loratory.cases import draw_labels  # not before a test asks for it
    from loratory.checking import claims_with
    marker = metafunc.definition.get_closest_marker("lora_claims")
    claims = claims_with(None, marker.kwargs if marker else {})
    option = metafunc.config.getoption
    labels = option("--lora-case") or draw_labels(option("--lora-cases"),
                                                  seed=option("--lora-seed"), claims=claims)
    metafunc.parametrize("lora_case", [(label, claims) for label in labels], ids=labels,
                         indirect=True)


@pytest.fixture
def lora_case(request: pytest.FixtureRequest) -> object:
    """A loratory.LoraCase."""
    from loratory.cases import LoraCase
    label, claims = cast("tuple[str, None]", request.param)
    return LoraCase(label, claims)
