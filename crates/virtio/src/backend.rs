//! What a VMM says over its socket: features, memory, and where the queues are.
//!
//! A queue runs while it has a kick and is enabled. Everything else can be said in any order before. A
//! message that makes no sense is refused, and ends the conversation.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::Deadline;
use parking_lot::RwLock;
use stream::hello::Sharing;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};
use virtio_queue::{Queue, QueueT};

use crate::memory::{REGIONS_MOST, Table};
use crate::ring::{CallPlace, MemoryPlace, Ring, Setup};
use crate::server::Options;
use crate::session::Session;

/// The most queues: one for FORGETs, and those for requests.
pub const QUEUES_MOST: usize = 65;
/// The most descriptors of a queue.
const SIZE_MOST: u16 = 1 << 15;
/// How long requests may go on after their queue was stopped, beyond their deadline.
const GRACE: Duration = Duration::from_secs(5);
/// Length of a tag, in bytes.
pub const TAG_MAX: usize = 36;

/// Features of the device, by bit.
mod feature {
    /// A table of descriptors beside the ring's own.
    pub(super) const INDIRECT: u64 = 1 << 28;
    /// Both sides say from where on they want to be notified.
    pub(super) const EVENT_IDX: u64 = 1 << 29;
    /// vhost-user has features of its own.
    pub(super) const PROTOCOL: u64 = 1 << 30;
    /// Virtio 1.0.
    pub(super) const VERSION_1: u64 = 1 << 32;
}

/// What is offered.
const FEATURES: u64 = feature::INDIRECT | feature::EVENT_IDX | feature::PROTOCOL | feature::VERSION_1;

/// One queue, as far as the VMM has said.
#[derive(Default)]
struct Said {
    size: u16,
    /// Descriptors, available ring and used ring, in the VMM's addresses.
    addresses: Option<[u64; 3]>,
    base: u16,
    kick: Option<File>,
    call: CallPlace,
    enabled: bool,
    ring: Option<Ring>,
}

/// See the [module](self).
pub struct Backend {
    session: Arc<Session>,
    options: Arc<Options>,
    /// The server ends, so that nothing is waited for.
    ending: Arc<AtomicBool>,
    features: u64,
    table: Table,
    memory: MemoryPlace,
    lanes: Arc<AtomicUsize>,
    queues: Vec<Said>,
    threads: usize,
}

impl Backend {
    /// A device to which nothing has been said.
    pub fn new(session: Arc<Session>, options: Arc<Options>, ending: Arc<AtomicBool>) -> Backend {
        let threads = session.door().options().threads;
        let queues = std::iter::repeat_with(Said::default).take(QUEUES_MOST).collect();
        Backend {
            session,
            options,
            ending,
            features: 0,
            table: Table::default(),
            memory: Arc::new(RwLock::default()),
            lanes: Arc::default(),
            queues,
            threads,
        }
    }

    /// Stops all queues, without waiting for what is in flight for longer than `patience`.
    pub fn stop(&mut self, patience: Duration) {
        for said in &mut self.queues {
            if let Some(ring) = said.ring.take() {
                said.base = ring.stop(patience);
            }
        }
    }

    /// The VMM is gone. Nothing waits for replies any more. With one guest at a time, the next one must not
    /// see its files change: what was taken from this one is finished first, as far as its time allows.
    pub fn leave(&mut self) {
        let rings: Vec<Ring> = self.queues.iter_mut().filter_map(|said| said.ring.take()).collect();
        rings.iter().for_each(|ring| _ = ring.stop(Duration::ZERO));
        // Requests that wait for a lock end by this.
        self.session.close();
        if self.session.door().options().sharing == Sharing::One {
            let until = Deadline::after(self.patience());
            rings.iter().for_each(|ring| _ = ring.stop(until.left()));
        }
    }

    fn patience(&self) -> Duration {
        match self.ending.load(Ordering::Acquire) {
            true => Duration::ZERO,
            false => self.session.door().options().deadline + GRACE,
        }
    }

    fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T> {
        Err(Error::ReqHandlerError(std::io::Error::other(why.to_string())))
    }

    fn said(&mut self, index: u32) -> Result<&mut Said> {
        let none = || Error::ReqHandlerError(std::io::Error::other(format!("there is no queue {index}")));
        self.queues.get_mut(index as usize).ok_or_else(none)
    }

    /// Starts or stops a queue, after something was said about it.
    fn settle(&mut self, index: u32) -> Result<()> {
        let patience = self.patience();
        let said = self.said(index)?;
        let runs = said.enabled && said.kick.is_some();
        match (&said.ring, runs) {
            (None, true) => self.start(index),
            (Some(ring), false) => {
                said.base = ring.stop(patience);
                said.ring = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(&mut self, index: u32) -> Result<()> {
        let (memory, lanes, session) =
            (Arc::clone(&self.memory), Arc::clone(&self.lanes), Arc::clone(&self.session));
        let event_idx = self.features & feature::EVENT_IDX != 0;
        // FORGETs need no reply, and one thread takes them faster than a guest sends them.
        let threads = if index == 0 { 1 } else { self.threads };
        let said = self.said(index)?;
        let (Some(addresses), Some(kick)) = (said.addresses, &said.kick) else {
            return self.refuse(format!("queue {index} has no addresses"));
        };
        let (kick, call, size, base) = (kick.try_clone(), Arc::clone(&said.call), said.size, said.base);
        let [descriptors, available, used] = addresses.map(|address| self.table.guest_address(address));
        let (Some(descriptors), Some(available), Some(used)) = (descriptors, available, used) else {
            return self.refuse(format!("queue {index} is outside of the guest's memory"));
        };
        let wrong = |error: virtio_queue::Error| Error::ReqHandlerError(std::io::Error::other(error));
        let mut queue = Queue::new(SIZE_MOST).map_err(wrong)?;
        queue.try_set_size(size).map_err(wrong)?;
        queue.try_set_desc_table_address(vm_memory::GuestAddress(descriptors)).map_err(wrong)?;
        queue.try_set_avail_ring_address(vm_memory::GuestAddress(available)).map_err(wrong)?;
        queue.try_set_used_ring_address(vm_memory::GuestAddress(used)).map_err(wrong)?;
        queue.set_next_avail(base);
        queue.set_event_idx(event_idx);
        let kick = kick.map_err(Error::ReqHandlerError)?;
        let setup = Setup { index: index as usize, queue, kick, call, memory, session, lanes, threads };
        let ring = Ring::start(setup).map_err(Error::ReqHandlerError)?;
        self.said(index)?.ring = Some(ring);
        Ok(())
    }

    fn remap(&mut self) {
        *self.memory.write() = self.table.memory();
    }

    /// What the guest's driver reads: the tag, and the number of request queues.
    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; TAG_MAX];
        let tag = self.options.tag.as_deref().unwrap_or_default().as_bytes();
        let len = tag.len().min(TAG_MAX);
        config[..len].copy_from_slice(&tag[..len]);
        config.extend(1_u32.to_le_bytes());
        config
    }
}

/// A file to wait for or to notify must never make a thread wait.
fn not_blocking(file: Option<File>) -> Result<Option<File>> {
    let set = |file: &File| {
        let flags = rustix::fs::fcntl_getfl(file)?;
        rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::NONBLOCK)
    };
    file.map(|file| set(&file).map(|()| file))
        .transpose()
        .map_err(|error| Error::ReqHandlerError(error.into()))
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop(self.patience());
        self.queues.iter_mut().for_each(|said| *said = Said::default());
        self.session.close();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return self.refuse(format!("it takes features that were not offered: {features:#x}"));
        }
        self.features = features;
        if features & feature::PROTOCOL == 0 {
            self.queues.iter_mut().for_each(|said| said.enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(&mut self, regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<()> {
        if let Err(error) = self.table.replace(regions, files) {
            return self.refuse(format!("its memory cannot be mapped: {error}"));
        }
        self.remap();
        Ok(())
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= SIZE_MOST);
        let Some(size) = size else {
            return self.refuse(format!("queue {index} cannot have {num} descriptors"));
        };
        self.said(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.said(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.said(index)?.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.said(index)?.kick = None;
        self.settle(index)?;
        Ok(VhostUserVringState::new(index, self.said(index)?.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let Some(kick) = not_blocking(fd)? else {
            return self.refuse("it wants its queues polled, which is not done here");
        };
        let index = index.into();
        self.said(index)?.kick = None;
        self.settle(index)?;
        self.said(index)?.kick = Some(kick);
        self.settle(index)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = not_blocking(fd)?.map(Arc::new);
        *self.said(index.into())?.call.write() = call;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.said(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let mut features = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        // QEMU warns of a back end with a configuration, because it has its own tag=.
        if self.options.tag.is_some() {
            features |= VhostUserProtocolFeatures::CONFIG;
        }
        Ok(features)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(QUEUES_MOST as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.said(index)?.enabled = enable;
        self.settle(index)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut config = self.config();
        let (from, to) = (offset as usize, (offset as usize).saturating_add(size as usize));
        if to > config.len() + size_of::<u32>() {
            return self.refuse("it reads a part of the configuration that there is not");
        }
        config.resize(to.max(config.len()), 0);
        Ok(config[from..to].to_vec())
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        self.refuse("the configuration cannot be changed")
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        self.refuse("this is no display")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        self.refuse("there are no shared objects")
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.refuse("requests in flight are not shared")
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        self.refuse("requests in flight are not shared")
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MOST as u64)
    }

    fn add_mem_region(&mut self, region: &VhostUserSingleMemoryRegion, fd: File) -> Result<()> {
        if let Err(error) = self.table.add(region, fd) {
            return self.refuse(format!("its memory cannot be mapped: {error}"));
        }
        self.remap();
        Ok(())
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        if let Err(error) = self.table.remove(region) {
            return self.refuse(format!("its memory cannot be removed: {error}"));
        }
        self.remap();
        Ok(())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        self.refuse("a mounted guest cannot be moved to another machine")
    }

    fn check_device_state(&mut self) -> Result<()> {
        self.refuse("a mounted guest cannot be moved to another machine")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        self.refuse("there is no shared memory")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        self.refuse("writes are not logged")
    }
}
