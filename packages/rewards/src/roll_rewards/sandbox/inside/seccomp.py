"""A filter of system calls for programs: what no answer to an exercise needs is refused."""

import ctypes
import errno
import struct

from roll_rewards.sandbox.inside import kernel

# Numbers on (x86-64, AArch64); None where the call does not exist.
# mount(2) is not among them: process 1 uses it, and without a capability it is refused anyway.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    # Memory that outlives its processes or that no limit of a process counts.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), (435, 435), (41, 198)
_SIGNALS = ((62, 129), (200, 130), (424, 424))  # kill, tkill, pidfd_send_signal
_NEW_NAMESPACE = 0x7E020080
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10

_LOAD, _EQUAL, _ABOVE_OR_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000
_SYS_SECCOMP, _SET_MODE_FILTER = {"x86_64": 317, "aarch64": 277}, 1


def filter_program(*, network_namespace: bool, protected: tuple[int, ...] = ()) -> bytes | None:
    """The filter, in the kernel's form; None on a machine whose numbers are not known here.

    Args:
        network_namespace: Whether the process has a network of its own: then it may have internet
            sockets, that reach nothing; otherwise it may have none at all.
        protected: Processes that must not be signalled, for kernels where nothing else prevents it.
    """
    if kernel.MACHINE not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[kernel.MACHINE]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    refused = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    if column == 0:
        code += [(_ABOVE_OR_EQUAL, 0, 1, _X32), refused]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            code += [(_EQUAL, 0, 1, number), refused]
    # The flags of clone3 are in memory, out of the filter's reach; C libraries fall back to clone.
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    allow = (_RETURN, 0, 0, _ALLOW)
    code += [
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACE),
        refused,
        allow,
    ]
    families = [_AF_UNIX, _AF_INET, _AF_INET6] if network_namespace else []
    no_socket = (_RETURN, 0, 0, _ERRNO | errno.EACCES)
    block = [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    for family in families:
        block += [(_EQUAL, 0, 1, family), allow]
    block.append(no_socket)
    code += [(_EQUAL, 0, len(block), _SOCKET[column]), *block]
    if protected:
        # -1 means every process that may be signalled.
        block = [(_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
        for process in (0xFFFFFFFF, *protected):
            block += [(_EQUAL, 0, 1, process), refused]
        block.append(allow)
        for numbers in _SIGNALS:
            code += [(_EQUAL, 0, len(block), numbers[column]), *block]
    code.append(allow)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Apply a filter to this process and all its children, for good. Needs no-new-privileges.

    Args:
        program: What `filter_program` made.

    Raises:
        OSError: The kernel refused.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    buffer = ctypes.create_string_buffer(header, len(header))
    kernel.call(_SYS_SECCOMP[kernel.MACHINE], _SET_MODE_FILTER, 0, ctypes.byref(buffer))
