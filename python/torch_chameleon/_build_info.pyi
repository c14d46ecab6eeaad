"""What the extension was built for; the build writes `_build_info.py`."""

VERSION: str
BUILT_FOR_TORCH: str
BUILT_WITH_CXX11_ABI: bool
