//! Every error: what it names, and what it says to do.

use super::*;
use crate::base::error::{Error, ErrorKind};

#[track_caller]
fn refused(request: &PlacementRequest, machine: &Topology) -> PlaceError {
    request.place(machine).expect_err("no place")
}

#[test]
fn a_missing_edge_is_named_with_its_direction() {
    let mut machine = machine(3);
    machine.devices[1].reaches = vec![2];
    let request = bytes(MIB).peers([2, 1]);
    let error = refused(&request, &machine);
    assert_eq!(error, PlaceError::NoPeerAccess { from: 1, to: 0 });
    let text = error.to_string();
    assert!(
        text.starts_with(
            "device 1 cannot use memory of device 0: cuDeviceCanAccessPeer(1, 0) says no; make device 1 \
             the home, leave it out"
        ),
        "{text}"
    );
    // The other direction is not needed, and memory of the host needs neither.
    let other = bytes(MIB).home(1).peers([0]);
    assert_eq!(other.place(&machine).map(|placement| placement.home), Ok(1));
    let host = request.access(A::Shared);
    expect(&host, &machine, "2b", PINNED);
}

#[test]
fn a_missing_capability_is_named_with_its_device_and_number() {
    let long = |export| bytes(MIB).export(export);
    for (request, capability, name, number) in [
        (
            long(Export::PosixFd),
            Capability::PosixFd,
            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
            103,
        ),
        (
            long(Export::Win32),
            Capability::Win32Handle,
            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED",
            104,
        ),
        (
            long(Export::Fabric),
            Capability::Fabric,
            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED",
            128,
        ),
        (
            long(Export::DmaBuf),
            Capability::DmaBuf,
            "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED",
            124,
        ),
        (
            long(Export::DmaBuf).growable(),
            Capability::GpuDirectVirtualMemory,
            "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
            110,
        ),
        (
            long(Export::PosixFd).access(A::Shared),
            Capability::HostNumaVirtualMemory,
            "CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            141,
        ),
        (
            bytes(1).growable(),
            Capability::VirtualMemory,
            "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            102,
        ),
        (
            bytes(1).page_size(2 * MIB),
            Capability::VirtualMemory,
            "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            102,
        ),
        (
            bytes(1).access(A::GpuWritesCpuReads),
            Capability::CanMapHostMemory,
            "CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY",
            19,
        ),
    ] {
        let error = refused(&request, &without(capability));
        let text = error.to_string();
        let start = format!("device 0 lacks {name} ({number}), which ");
        assert!(text.starts_with(&start), "{text}");
        assert!(text.contains(" needs; "), "{text}");
        assert_eq!(Error::from(error).kind(), ErrorKind::NotSupported);
    }
}

#[test]
fn what_a_pool_could_do_instead_is_said() {
    let request = bytes(MIB).export(Export::PosixFd);
    let text = refused(&request, &without(Capability::PosixFd)).to_string();
    assert!(text.contains("ask for a short lifetime"), "{text}");
}

#[test]
fn host_memory_that_grows_wants_a_node_or_the_newest_driver() {
    let request = bytes(MIB).access(A::Streaming).growable().peers([1]);
    let mut machine = machine(2);
    for device in &mut machine.devices {
        device.capabilities.host_virtual_memory = false;
    }
    expect(&request, &machine, "3e", MAPPED_NODE);
    machine.devices[1].capabilities.host_numa_virtual_memory = false;
    let error = refused(&request, &machine);
    let PlaceError::Missing {
        device: 1,
        capability: Capability::HostNumaVirtualMemory,
        ..
    } = error
    else {
        panic!("{error}");
    };
    machine.devices[1].capabilities.host_numa_virtual_memory = true;
    machine.devices[0].host_numa_node = None;
    let error = refused(&request, &machine);
    assert!(
        error
            .to_string()
            .contains("CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID")
    );
}

#[test]
fn a_size_of_pages_that_is_not_there_is_refused_with_those_that_are() {
    let pages = one(|device| device.recommended_granularity = 512 * MIB);
    let request = bytes(GIB).page_size(64 * KIB);
    let error = refused(&request, &pages);
    assert_eq!(
        error.to_string(),
        "mapped memory of the device has no pages of 65536 bytes, it has 2097152 and 536870912; ask for \
         one of these, or for none"
    );
    let error = refused(&request.clone().access(A::Streaming), &pages);
    assert!(
        error.to_string().contains("it has 4096 and 2097152;"),
        "{error}"
    );
    // What is exported is not pinned.
    let shared = request.access(A::Shared).export(Export::PosixFd);
    let error = refused(&shared, &pages);
    assert!(error.to_string().contains("it has 2097152;"), "{error}");
}

#[test]
fn more_than_there_is_says_why_it_is_not_spread() {
    let request = bytes(100 * GIB);
    let error = refused(&request, &machine(2));
    assert!(
        error.to_string().contains("name peers to spread it over"),
        "{error}"
    );
    let error = Error::from(error);
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(
        error.out_of_memory().map(|memory| memory.asked),
        Some(100 * GIB)
    );

    let mut machine = machine(2);
    machine.devices[0].reaches.clear();
    let error = refused(&request.clone().peers([1]), &machine);
    let expected = PlaceError::NoPeerAccess { from: 0, to: 1 };
    let PlaceError::NoRoom { striping, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(striping.as_deref(), Some(&expected));
    assert!(error.to_string().ends_with(&expected.to_string()));

    machine.devices[0].reaches = vec![1];
    machine.devices[1].free = Some(GIB);
    let error = refused(&request.peers([1]), &machine);
    assert!(
        error
            .to_string()
            .contains("device 1 has room for 1.0 GiB, which is less than its part of 50.0 GiB"),
        "{error}"
    );
}

#[test]
fn advice_against_too_little_room_would_help() {
    let large = bytes(100 * GIB);
    let mut two = machine(2);
    let mut apart = machine(2);
    apart.devices[0].reaches.clear();
    let mut unlike = apart.clone();
    unlike.devices[1].total = 200 * GIB;
    let mut larger = machine(2);
    larger.devices[1].total = 200 * GIB;
    let host = "ask for memory of the host (`AccessPattern::Shared`)";
    let of_host = |words: &str| format!("{words}, or {host}");
    let less = "ask for less";
    for (request, machine, remedy) in [
        (
            large.clone(),
            &two,
            "ask for less, or name peers to spread it over".to_owned(),
        ),
        (large.clone(), &machine(1), of_host(less)),
        (large.clone(), &apart, of_host(less)),
        (
            large.clone(),
            &unlike,
            "ask for less, or make device 1 the home".to_owned(),
        ),
        (large.clone().growable(), &two, of_host(less)),
        (
            large.clone().export(Export::PosixFd),
            &two,
            "ask for less, or do not export it and name peers to spread it over".to_owned(),
        ),
        (
            large.clone().export(Export::PosixFd).peers([1]),
            &two,
            "ask for less, or do not export it".to_owned(),
        ),
        (
            large.clone().export(Export::PosixFd).growable(),
            &two,
            of_host(less),
        ),
        (
            large.clone().export(Export::Fabric).growable(),
            &two,
            less.to_owned(),
        ),
        (
            large.clone().export(Export::DmaBuf).access(A::Streaming),
            &two,
            "ask for less, or do not export it".to_owned(),
        ),
        (
            bytes(200 * GIB).peers([1]),
            &machine(3),
            "ask for less, or name more peers".to_owned(),
        ),
        (bytes(200 * GIB).peers([1]), &two, of_host(less)),
    ] {
        let text = refused(&request, machine).to_string();
        assert!(
            text.ends_with(&format!("; {remedy}")),
            "{request:?}: {text}"
        );
    }
    // Of a device without memory nothing is had by asking for less.
    for device in &mut two.devices {
        device.total = 0;
    }
    let text = refused(&bytes(1).peers([1]), &two).to_string();
    assert!(text.ends_with(&format!("; {host}")), "{text}");
    for device in &mut two.devices {
        device.capabilities.can_map_host_memory = false;
    }
    let text = refused(&bytes(1), &two).to_string();
    assert!(
        text.ends_with("; take a machine with more memory"),
        "{text}"
    );
}

#[test]
fn plain_memory_is_not_given_to_other_devices() {
    let mut machine = machine(2);
    machine.devices[0].capabilities.memory_pools = false;
    for size in [1, 2 * MIB + 1] {
        for lifetime in [Lifetime::Short, Lifetime::Long] {
            let request = bytes(size).lifetime(lifetime);
            let of_both = request.clone().peers([1]);
            let step = if lifetime == Lifetime::Short {
                "4c"
            } else {
                "4d"
            };
            expect(&request, &machine, step, K::Device);
            expect(&of_both, &machine, step, K::Vmm);
            let mut poor = machine.clone();
            poor.devices[0].capabilities.virtual_memory = false;
            expect(&request, &poor, step, K::Device);
            let text = refused(&of_both, &poor).to_string();
            let start = "device 0 lacks CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED (115), which memory of one";
            assert!(text.starts_with(start), "{text}");
        }
    }
    let dma_buf = bytes(1).export(Export::DmaBuf);
    machine.devices[0].capabilities.gpu_direct_virtual_memory = false;
    expect(&dma_buf, &machine, "1b", K::Device);
    let text = refused(&dma_buf.peers([1]), &machine).to_string();
    assert!(
        text.contains("RDMA_WITH_CUDA_VMM_SUPPORTED (110)"),
        "{text}"
    );
}

#[test]
fn what_grows_is_not_spread() {
    let request = bytes(100 * GIB).peers([1]).growable();
    let error = refused(&request, &machine(2));
    let PlaceError::NoRoom { striping, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(striping.as_deref(), Some(PlaceError::Conflict { .. })),
        "{error}"
    );
    assert!(
        error.to_string().contains("growing in place and"),
        "{error}"
    );
}

#[test]
fn what_goes_together_nowhere_is_refused() {
    let machine = machine(1);
    let combining = |access| bytes(1).access(access).write_combining();
    for request in [
        bytes(1).access(A::Shared).export(Export::DmaBuf),
        bytes(1).access(A::SharedInTurns).export(Export::Fabric),
        combining(A::GpuWritesCpuReads),
        combining(A::GpuOnly),
        combining(A::CpuWritesGpuReads).growable(),
        combining(A::CpuWritesGpuReads).page_size(2 * MIB),
        combining(A::CpuWritesGpuReads).export(Export::PosixFd),
    ] {
        let error = refused(&request, &machine);
        assert!(error.to_string().contains("do not go together"), "{error}");
        assert_eq!(Error::from(error).kind(), ErrorKind::InvalidValue);
    }
}

#[test]
fn sizes_and_devices_that_cannot_be_are_refused() {
    assert_eq!(refused(&bytes(0), &machine(1)), PlaceError::NoBytes);
    let asked = (1 << 62) + 1;
    for access in [A::GpuOnly, A::Streaming] {
        let error = refused(&bytes(asked).access(access), &machine(1));
        assert_eq!(error, PlaceError::TooLarge { asked });
    }
    let peers = bytes(1).peers([0, 3]);
    for (request, machine, device) in [
        (bytes(1), machine(0), 0),
        (bytes(1).home(2), machine(2), 2),
        (peers, machine(2), 3),
    ] {
        let devices = machine.devices.len();
        let error = refused(&request, &machine);
        assert_eq!(error, PlaceError::NoSuchDevice { device, devices });
        assert_eq!(Error::from(error).kind(), ErrorKind::InvalidDevice);
    }
}
