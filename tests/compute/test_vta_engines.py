"""The fast engine does what the readable simulator does, bit for bit, and refuses what it refuses."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.vta.config import Config
from potash_device.vta.fast.paths import available
from potash_device.vta.stream import Order
from support.vta import CONFIGS
from support.vta_engines import Pair, micro_op_lists, streams

DEFAULT = Config.default()


@pytest.mark.parametrize("path", available(DEFAULT))
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_stream_on_the_default_core(path: str, data: Any) -> None:
    micro_ops = data.draw(micro_op_lists(DEFAULT))
    stream = data.draw(streams(DEFAULT, len(micro_ops)))
    order = data.draw(st.sampled_from(Order))
    Pair(DEFAULT, path=path, micro_ops=micro_ops, order=order).check(stream)


@pytest.mark.parametrize("config", CONFIGS[1:])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_stream_on_other_cores(config: Config, data: Any) -> None:
    micro_ops = data.draw(micro_op_lists(config))
    stream = data.draw(streams(config, len(micro_ops)))
    Pair(config, micro_ops=micro_ops).check(stream)
