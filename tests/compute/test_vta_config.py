"""The configuration: the platform's figures, and what no core can be."""

import dataclasses
import json
from pathlib import Path

import pytest

from potash_device.vta.config import Config, ConfigError, MemoryId

VTA_CONFIG_JSON = """{
  "TARGET": "sim", "HW_VER": "0.0.2",
  "LOG_INP_WIDTH": 3, "LOG_WGT_WIDTH": 3, "LOG_ACC_WIDTH": 5,
  "LOG_BATCH": 0, "LOG_BLOCK": 4,
  "LOG_UOP_BUFF_SIZE": 15, "LOG_INP_BUFF_SIZE": 15,
  "LOG_WGT_BUFF_SIZE": 18, "LOG_ACC_BUFF_SIZE": 17
}"""


def test_the_default_is_the_platforms_core() -> None:
    config = Config.default()
    assert (config.batch, config.block_in, config.block_out) == (1, 16, 16)
    assert {m: config.element_bytes(m) for m in MemoryId} == {
        MemoryId.UOP: 4,
        MemoryId.WGT: 256,
        MemoryId.INP: 16,
        MemoryId.ACC: 64,
        MemoryId.OUT: 16,
        MemoryId.ACC_8BIT: 16,
    }
    assert {m: config.depth(m) for m in MemoryId} == {
        MemoryId.UOP: 8192,
        MemoryId.WGT: 1024,
        MemoryId.INP: 2048,
        MemoryId.ACC: 2048,
        MemoryId.OUT: 2048,
        MemoryId.ACC_8BIT: 2048,
    }
    assert config.log_out_buff_size == 15
    assert config.alignment == 256


def test_the_vta_projects_file_is_read(tmp_path: Path) -> None:
    assert Config.from_json(VTA_CONFIG_JSON) == Config.default()
    path = tmp_path / "vta_config.json"
    path.write_text(VTA_CONFIG_JSON)
    assert Config.from_file(path) == Config.default()


def test_blocks_and_batch_shape_the_elements() -> None:
    config = Config.from_json('{"LOG_BATCH": 1, "LOG_BLOCK_IN": 3, "LOG_BLOCK_OUT": 5}')
    assert (config.batch, config.block_in, config.block_out) == (2, 8, 32)
    assert config.element_bytes(MemoryId.INP) == 2 * 8
    assert config.element_bytes(MemoryId.WGT) == 8 * 32
    assert config.element_bytes(MemoryId.ACC) == 2 * 32 * 4
    assert config.element_bytes(MemoryId.OUT) == config.element_bytes(MemoryId.ACC_8BIT) == 64
    assert config.depth(MemoryId.ACC) == 131072 // 256


def test_a_wider_output_is_stored_whole() -> None:
    config = Config(log_out_width=5)
    assert config.element_bytes(MemoryId.OUT) == 64
    assert config.element_bytes(MemoryId.ACC_8BIT) == 16


def test_it_can_be_written_and_read_back() -> None:
    config = Config(log_block_in=3, log_wgt_buff_size=16, log_acc_buff_size=16)
    assert Config.from_json(json.dumps(config.to_mapping())) == config


def test_it_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config.default().log_batch = 3  # type: ignore[misc]  # that is what is tested


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"LOG_INP_WIDTH": 2}, "LOG_INP_WIDTH is 2"),
        ({"LOG_WGT_WIDTH": 6}, "LOG_WGT_WIDTH is 6"),
        ({"LOG_ACC_WIDTH": 4}, "accumulators have 32 bits"),
        ({"LOG_BATCH": -1}, "LOG_BATCH is -1"),
        ({"LOG_BLOCK": 40}, "LOG_BLOCK_IN is 40"),
        ({"LOG_INP_BUFF_SIZE": 3}, "LOG_INP_BUFF_SIZE is 3: with elements of 16 bytes"),
        ({"LOG_WGT_BUFF_SIZE": 31}, "must be 8 to 30"),
        ({"LOG_INP_BUFF_SIZE": 21}, "131072 elements are more than an SRAM address"),
        # 14 + 15 bits of micro-op numbers: 4 + 3 + 1 + 29 + 28 = 65.
        ({"LOG_UOP_BUFF_SIZE": 16}, "would need 65 bits and has 64; reduce LOG_UOP_BUFF_SIZE"),
        # 12 + 11 + 10 bits of indices; and twice that in factors.
        (
            {"LOG_ACC_BUFF_SIZE": 18},
            "has 64; reduce LOG_ACC_BUFF_SIZE or LOG_INP_BUFF_SIZE or LOG_WGT_BUFF_SIZE",
        ),
        # Elements of smaller blocks are smaller, so that the same buffers have more of them.
        (
            {"LOG_BLOCK": 3},
            "has 64; reduce LOG_ACC_BUFF_SIZE or LOG_INP_BUFF_SIZE or LOG_WGT_BUFF_SIZE",
        ),
        # 2 * 12 + 2 * 11 + 3 + 1 + 16 = 66 although 12 + 11 + 9 fits 32.
        (
            {"LOG_ACC_BUFF_SIZE": 18, "LOG_WGT_BUFF_SIZE": 17},
            "word 1 of the alu encoding would need 66 bits",
        ),
        ({"LOG_OUT_BUFF_SIZE": 16}, "LOG_OUT_BUFF_SIZE is 16"),
        ({"LOG_UOP_WIDTH": 6}, "LOG_UOP_WIDTH must be 5"),
        ({"LOG_UOP_WIDTH": 5.0}, "LOG_UOP_WIDTH must be 5"),
        ({"LOG_INS_WIDTH": True}, "LOG_INS_WIDTH must be 7"),
        ({"LOG_BLOK": 4}, "'LOG_BLOK' is not a key"),
        ({"log_batch": 0}, "'log_batch' is not a key"),
        ({"CLOCK": 100}, "'CLOCK' is not a key"),
        ({"LOG_BLOCK": 4, "LOG_BLOCK_IN": 5}, "LOG_BLOCK_IN is 5 and LOG_BLOCK is 4"),
        ({"LOG_BLOCK": None}, "LOG_BLOCK_IN must be an integer"),
        ({"LOG_BATCH": "0"}, "LOG_BATCH must be an integer"),
        ({"LOG_BATCH": True}, "LOG_BATCH must be an integer"),
    ],
)
def test_an_impossible_core_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Config.from_mapping(values)


def test_an_output_is_as_wide_as_an_input_where_nothing_else_is_said() -> None:
    narrow = {"LOG_INP_WIDTH": 4, "LOG_WGT_WIDTH": 3}
    assert Config.from_mapping(narrow).log_out_width == 4
    assert Config.from_mapping(narrow | {"LOG_OUT_WIDTH": 3}).log_out_width == 3
    assert Config.from_mapping({"LOG_WGT_WIDTH": 4}).log_out_width == 3


def test_what_describes_a_board_is_ignored() -> None:
    board = {"TARGET": "pynq", "HW_FREQ": 100, "HW_CLK_TARGET": 8, "LOG_BUS_WIDTH": 6}
    assert Config.from_mapping(board) == Config.default()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        (b"\xff\xff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"LOG_BATCH": 0, "LOG_BLOCK": 4, "LOG_BATCH": 1}', "'LOG_BATCH' is in .* twice"),
        ('{"LOG_BATCH": 1e0}', "LOG_BATCH must be an integer, not 1.0"),
        ('{"LOG_BATCH": NaN}', "LOG_BATCH must be an integer, not nan"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Config.from_json(text)
