"""Platforms are found from files and the vendor's command."""

import subprocess
import sys

import pytest
from roll_hw import PLATFORMS, HwError, Platform, count_devices, detect_platform


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


class Machine:
    """A file system and an environment with the devices that a test puts there."""

    def __init__(self, root):
        self.root = root
        self.environment = {"PATH": str(root / "bin")}
        (root / "bin").mkdir()
        (root / "dev").mkdir()

    def add_nvidia_smi(self, body):
        path = self.root / "bin/nvidia-smi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def add_device_files(self, *names):
        for name in names:
            (self.root / "dev" / name).touch()

    def add_amd_node(self, number, simds, gib, heap_type=1):
        node = self.root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        (node / "mem_banks/0").mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\n")
        (node / "mem_banks/0/properties").write_text(f"heap_type {heap_type}\nsize_in_bytes {gib * 2**30}\n")

    def detect(self):
        return detect_platform(environment=self.environment, root=self.root)

    def count(self, name):
        return count_devices(PLATFORMS[name], environment=self.environment, root=self.root)


def test_machine_without_devices_is_a_cpu(machine):
    assert machine.detect() == PLATFORMS["cpu"]
    assert [machine.count(name) for name in PLATFORMS] == [0, 0, 0, 0]


def test_nvidia_devices_have_the_memory_of_the_smallest(machine):
    machine.add_nvidia_smi("echo 81920; echo 40960")
    platform = machine.detect()
    assert (platform.name, platform.device_memory_gib) == ("cuda", 40.0)
    assert machine.count("cuda") == 2


def test_nvidia_devices_without_the_command_are_found_by_their_files(machine):
    machine.add_device_files("nvidia0", "nvidia1", "nvidiactl")
    platform = machine.detect()
    assert (platform.name, platform.device_memory_gib) == ("cuda", None)
    assert machine.count("cuda") == 2


def test_memory_that_the_command_does_not_tell_is_unknown(machine):
    machine.add_nvidia_smi("echo '[N/A]'")
    assert machine.detect() == PLATFORMS["cuda"]


@pytest.mark.parametrize("body", ["exit 9", "echo 'No devices were found'; exit 6", ""])
def test_nvidia_command_without_a_device_is_no_device(machine, body):
    machine.add_nvidia_smi(body)
    assert machine.detect() == PLATFORMS["cpu"]


@pytest.mark.parametrize(
    ("visible", "count", "memory"),
    [("0", 1, 80.0), ("1", 1, 40.0), ("0,1", 2, 40.0), ("0,7,1", 1, 80.0), ("GPU-8f3a", 1, 80.0)],
)
def test_environment_limits_the_devices(machine, visible, count, memory):
    machine.add_nvidia_smi("echo 81920; echo 40960")
    machine.environment["CUDA_VISIBLE_DEVICES"] = visible
    assert machine.count("cuda") == count
    assert machine.detect().device_memory_gib == memory


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_environment_that_hides_all_devices_makes_a_cpu(machine, hidden):
    machine.add_nvidia_smi("echo 81920")
    machine.environment["CUDA_VISIBLE_DEVICES"] = hidden
    assert machine.detect() == PLATFORMS["cpu"]
    assert machine.count("cuda") == 0


def test_amd_devices_are_the_nodes_with_simds(machine):
    machine.add_device_files("kfd")
    machine.add_amd_node(0, simds=0, gib=512, heap_type=0)
    machine.add_amd_node(1, simds=304, gib=192)
    machine.add_amd_node(2, simds=304, gib=191, heap_type=2)
    platform = machine.detect()
    assert (platform.name, platform.torch_device, platform.device_memory_gib) == ("rocm", "cuda", 191.0)
    assert machine.count("rocm") == 2
    machine.environment["HIP_VISIBLE_DEVICES"] = "0"
    assert machine.detect().device_memory_gib == 192.0


def test_ascend_devices_are_found_by_their_files(machine):
    machine.add_device_files("davinci0", "davinci10", "davinci_manager")
    platform = machine.detect()
    assert platform == PLATFORMS["npu"]
    assert platform.collective_backend == "hccl"
    assert machine.count("npu") == 2


def test_unknown_platform_cannot_be_counted():
    tpu = Platform(name="tpu", torch_device="xla", visible_devices_variable=None, collective_backend="gloo")
    with pytest.raises(HwError, match="got 'tpu', allowed is one of cuda, rocm, npu, cpu"):
        count_devices(tpu)


def test_this_machine_has_a_platform():
    platform = detect_platform()
    assert platform.name in PLATFORMS
    assert (count_devices(platform) > 0) == (platform.name != "cpu")


def test_using_the_package_imports_nothing_heavy_and_no_sibling():
    code = (
        "import sys, roll_hw\n"
        "roll_hw.detect_platform()\n"
        "heavy = {'torch', 'ray', 'transformers', 'vllm', 'numpy', 'roll_scheduler', 'roll_rollout',"
        " 'roll_rewards', 'roll_agentic', 'roll_learners', 'roll_launch'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
