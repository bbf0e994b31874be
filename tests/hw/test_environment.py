"""Threads and environment variables of workers."""

import pytest
from roll_hw import HwError, threads_per_process, worker_environment


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 2, 4), (8, 3, 2), (2, 8, 1), (1, 1, 1)])
def test_cores_are_shared_by_the_processes_that_are_active_together(cores, processes, threads):
    assert threads_per_process(cores, processes) == threads


@pytest.mark.parametrize(("cores", "processes"), [(0, 1), (4, 0)])
def test_impossible_numbers_are_refused(cores, processes):
    with pytest.raises(HwError, match=f"got {cores} cores for {processes} processes"):
        threads_per_process(cores, processes)


def test_the_user_beats_the_default():
    driver = {"OMP_NUM_THREADS": "3", "PATH": "/usr/bin"}
    defaults = {"OMP_NUM_THREADS": "8", "TOKENIZERS_PARALLELISM": "false"}
    assert worker_environment(driver, defaults) == {"OMP_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "false"}
    assert defaults["OMP_NUM_THREADS"] == "8"


def test_variables_of_the_workers_libraries_reach_them():
    driver = {"NCCL_DEBUG": "INFO", "HF_HOME": "/data/hub", "VLLM_USE_V1": "1"}
    assert worker_environment(driver, {}) == driver


def test_what_belongs_to_the_drivers_machine_stays_there():
    driver = {"PATH": "/usr/bin", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/opt"}
    assert worker_environment(driver, {}) == {}


def test_secrets_are_passed_on_by_name_only():
    driver = {"HF_TOKEN": "hf_x", "VLLM_API_KEY": "k"}
    assert worker_environment(driver, {}) == {}
    assert worker_environment(driver, {"HF_TOKEN": ""}) == {"HF_TOKEN": "hf_x"}
