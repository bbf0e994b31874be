"""Kinds of values that several sections have."""

from typing import Annotated, Literal

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=1, le=1024)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Dtype = Literal["float32", "bfloat16"]
Device = Annotated[str, Field(pattern=r"^(cpu|(cuda|npu):[0-9]{1,4})$")]
"""`cpu`, or one device by torch's name: `cuda:0` (also on ROCm), `npu:0`."""
Overlong = Literal["error", "drop"]
CallablePath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
"""`package.module:function`."""
StageName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
"""Letters, digits, `_` and `-`, so that it can be a directory and a part of a dotted key."""
