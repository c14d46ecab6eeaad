"""What is changed in torch, and in a few libraries, for the device.

README.md says of each module what it changes, and when it can go. All are
installed once a process, when the package is imported; none touches a device.
"""

from torch_chameleon._patches import (
    agent_store,
    backward,
    cuda_synchronize,
    custom_ops,
    data_parallel,
    decompositions,
    device_interface,
    first_broadcast,
    flex_attention,
    guards,
    inductor,
    load_safetensors,
    meta_kernels,
    module_to,
    printing,
    process_groups,
    processes,
    sharded_attention,
    sharded_random,
    storage_bytes,
)


def install() -> None:
    """Puts all of them in place."""
    for patch in (
        module_to,
        guards,
        processes,
        process_groups,
        agent_store,
        first_broadcast,
        cuda_synchronize,
        data_parallel,
        printing,
        decompositions,
        meta_kernels,
        device_interface,
        inductor,
        load_safetensors,
        backward,
        flex_attention,
        storage_bytes,
        sharded_attention,
        sharded_random,
        custom_ops,
    ):
        patch.install()
