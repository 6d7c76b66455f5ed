//! Which kinds of mapping to try, in which order: a pure function.

use std::fmt;

use super::kind::{CpuMappingKind, CpuMappingReason, MappingKind};
use super::options::CpuMappingOptions;
use crate::driver::pointer::MemoryKind;

/// What the choice depends on, in addition to the options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuMappingInfo {
    /// Where the memory is.
    pub memory: MemoryKind,
    /// Whether host threads may access the memory, if it is host memory.
    pub host_access: bool,
    /// How the processor treats accesses to the memory, if it is host memory.
    pub host_mapping: MappingKind,
    /// Whether the driver reports that third parties may access the memory; `None` if it does not say.
    pub gpu_direct: Option<bool>,
    /// Whether the block shares none of the GPU pages around the mapping.
    pub own_pages: bool,
    /// Whether the device reports that dma-bufs of its memory can be mapped.
    pub dma_buf_mapping: bool,
    /// Bytes of BAR1 that a mapping would take.
    pub bar1_needed: u64,
    /// Bytes of BAR1 that are free; `None` if unknown.
    pub bar1_free: Option<u64>,
}

impl CpuMappingInfo {
    /// Device memory about which nothing else is known.
    #[must_use]
    pub fn of(memory: MemoryKind) -> Self {
        Self {
            memory,
            host_access: true,
            host_mapping: MappingKind::Cached,
            gpu_direct: None,
            own_pages: true,
            dma_buf_mapping: false,
            bar1_needed: 0,
            bar1_free: None,
        }
    }
}

/// The decision. For an open mapping, [`CpuMappingChoice::kind`] is its actual kind.
#[derive(Clone, Debug)]
pub struct CpuMappingChoice {
    /// The kinds that may work, the best first.
    pub(super) candidates: Vec<CpuMappingKind>,
    /// The rejected kinds, with the reason.
    pub(super) left_out: Vec<(CpuMappingKind, CpuMappingReason)>,
}

impl CpuMappingChoice {
    /// Decides from the information and the options alone: makes no queries and is deterministic.
    ///
    /// ```
    /// use cuda_mem::cpu_mapping::{CpuMappingChoice, CpuMappingInfo, CpuMappingKind, CpuMappingOptions};
    /// use cuda_mem::driver::MemoryKind;
    ///
    /// let mut info = CpuMappingInfo::of(MemoryKind::Device);
    /// let choice = CpuMappingChoice::new(&info, &CpuMappingOptions::new());
    /// assert_eq!(choice.candidates(), [CpuMappingKind::Gdrcopy, CpuMappingKind::Copies]);
    ///
    /// info.gpu_direct = Some(false);
    /// let choice = CpuMappingChoice::new(&info, &CpuMappingOptions::new());
    /// assert_eq!(choice.kind(), Some(CpuMappingKind::Copies));
    /// println!("{choice}"); // copies; not gdrcopy: the driver lets nobody else …
    /// ```
    #[must_use]
    pub fn new(info: &CpuMappingInfo, options: &CpuMappingOptions) -> Self {
        let mut order = options.preferred.clone();
        for kind in CpuMappingKind::ALL {
            if !order.contains(&kind) {
                order.push(kind);
            }
        }
        let mut choice = Self {
            candidates: Vec::new(),
            left_out: Vec::new(),
        };
        for kind in order {
            match reason_against(kind, info, options) {
                None => choice.candidates.push(kind),
                Some(reason) => choice.left_out.push((kind, reason)),
            }
        }
        choice
    }

    /// The kind that was taken or would be tried first; `None` if none is left.
    #[must_use]
    pub fn kind(&self) -> Option<CpuMappingKind> {
        self.candidates.first().copied()
    }

    /// The kinds that may work, the best first. For an open mapping, only its actual kind.
    #[must_use]
    pub fn candidates(&self) -> &[CpuMappingKind] {
        &self.candidates
    }

    /// The rejected kinds, each with the reason, in the order in which they were considered.
    #[must_use]
    pub fn left_out(&self) -> &[(CpuMappingKind, CpuMappingReason)] {
        &self.left_out
    }

    /// Rejects a candidate that was tried and failed.
    pub(super) fn leave_out(&mut self, kind: CpuMappingKind, reason: CpuMappingReason) {
        self.candidates.retain(|other| *other != kind);
        self.left_out.push((kind, reason));
    }

    /// Settles on the first candidate.
    pub(super) fn take(&mut self) {
        let others = self.candidates.split_off(self.candidates.len().min(1));
        let others = others.into_iter();
        self.left_out
            .extend(others.map(|kind| (kind, CpuMappingReason::NotNeeded)));
    }
}

/// `copies; not gdrcopy: …; not dma-buf: …`.
impl fmt::Display for CpuMappingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => write!(f, "{kind}")?,
            None => f.write_str("none")?,
        }
        for (kind, reason) in &self.left_out {
            if !matches!(reason, CpuMappingReason::NotNeeded) {
                write!(f, "; not {kind}: {reason}")?;
            }
        }
        Ok(())
    }
}

fn reason_against(
    kind: CpuMappingKind,
    info: &CpuMappingInfo,
    options: &CpuMappingOptions,
) -> Option<CpuMappingReason> {
    if options.refused.contains(&kind) {
        return Some(CpuMappingReason::Refused);
    }
    let is_of_host = info.memory == MemoryKind::Host;
    match kind {
        CpuMappingKind::Copies => None,
        _ if info.memory == MemoryKind::Managed => Some(CpuMappingReason::ManagedMemory),
        CpuMappingKind::HostMapped if !is_of_host => Some(CpuMappingReason::MemoryOfDevice),
        CpuMappingKind::HostMapped if !info.host_access => Some(CpuMappingReason::NoAccess),
        CpuMappingKind::HostMapped => options
            .mapping
            .is_some_and(|wanted| wanted != info.host_mapping)
            .then_some(CpuMappingReason::NoSuchMapping),
        _ if is_of_host => Some(CpuMappingReason::MemoryOfHost),
        CpuMappingKind::Gdrcopy if info.gpu_direct == Some(false) => {
            Some(CpuMappingReason::NotGpuDirect)
        }
        CpuMappingKind::Gdrcopy if !info.own_pages => Some(CpuMappingReason::SharedPages),
        CpuMappingKind::DmaBuf if !info.dma_buf_mapping => Some(CpuMappingReason::NoDmaBufMapping),
        CpuMappingKind::DmaBuf if options.mapping.is_some() => {
            Some(CpuMappingReason::NoSuchMapping)
        }
        CpuMappingKind::DmaBuf | CpuMappingKind::Gdrcopy => info
            .bar1_free
            .filter(|free| *free < info.bar1_needed)
            .map(|free| CpuMappingReason::Bar1Full {
                needed: info.bar1_needed,
                free,
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORIES: [MemoryKind; 4] = [
        MemoryKind::Device,
        MemoryKind::Host,
        MemoryKind::Managed,
        MemoryKind::Other(77),
    ];
    const MAPPINGS: [Option<MappingKind>; 4] = [
        None,
        Some(MappingKind::WriteCombining),
        Some(MappingKind::Cached),
        Some(MappingKind::Device),
    ];

    /// Every combination of the information about memory and machine.
    fn all_info() -> Vec<CpuMappingInfo> {
        let mut all = Vec::new();
        for memory in MEMORIES {
            for gpu_direct in [None, Some(false), Some(true)] {
                for bar1_free in [None, Some(1 << 16), Some((1 << 16) - 1)] {
                    for bits in 0..16 {
                        all.push(CpuMappingInfo {
                            memory,
                            host_access: bits & 4 == 4,
                            host_mapping: if bits & 8 == 8 {
                                MappingKind::WriteCombining
                            } else {
                                MappingKind::Cached
                            },
                            gpu_direct,
                            own_pages: bits & 1 == 1,
                            dma_buf_mapping: bits & 2 == 2,
                            bar1_needed: 1 << 16,
                            bar1_free,
                        });
                    }
                }
            }
        }
        all
    }

    /// Every combination of one preference, refusals and a mapping.
    fn all_options() -> impl Iterator<Item = CpuMappingOptions> {
        let preferences = std::iter::once(None).chain(CpuMappingKind::ALL.map(Some));
        preferences.flat_map(|preferred| {
            (0_u32..16).flat_map(move |refused| {
                MAPPINGS.into_iter().map(move |mapping| {
                    let is_refused = |index: &usize| refused >> index & 1 == 1;
                    let refused = (0..4)
                        .filter(is_refused)
                        .map(|index| CpuMappingKind::ALL[index]);
                    let mut options = CpuMappingOptions::new().prefer(preferred).refuse(refused);
                    options.mapping = mapping;
                    options
                })
            })
        })
    }

    #[test]
    fn every_kind_is_a_candidate_or_has_a_reason() {
        let mut firsts = Vec::new();
        for info in all_info() {
            for options in all_options() {
                let choice = CpuMappingChoice::new(&info, &options);
                for kind in CpuMappingKind::ALL {
                    let candidates = choice.candidates.iter().filter(|other| **other == kind);
                    let reasons = choice.left_out.iter().filter(|(other, _)| *other == kind);
                    assert_eq!(candidates.count() + reasons.count(), 1, "{kind} {info:?}");
                    if options.refused.contains(&kind) {
                        assert!(!choice.candidates.contains(&kind), "{kind} is refused");
                    }
                }
                // Copies are a candidate unless refused.
                let copies = !options.refused.contains(&CpuMappingKind::Copies);
                assert_eq!(choice.candidates.contains(&CpuMappingKind::Copies), copies);
                // A preference is honoured wherever it is possible.
                if let Some(wish) = options.preferred.first()
                    && choice.candidates.contains(wish)
                {
                    assert_eq!(choice.kind(), Some(*wish));
                }
                firsts.extend(choice.kind());
            }
        }
        for kind in CpuMappingKind::ALL {
            assert!(firsts.contains(&kind), "{kind} is never first");
        }
    }

    #[test]
    fn what_is_possible_depends_on_the_memory() {
        for info in all_info() {
            for options in all_options().filter(|options| options.refused.is_empty()) {
                let choice = CpuMappingChoice::new(&info, &options);
                let has = |kind| choice.candidates.contains(&kind);
                let is_device = !matches!(info.memory, MemoryKind::Host | MemoryKind::Managed);
                let fits = info.bar1_free.is_none_or(|free| free >= info.bar1_needed);
                let gdrcopy = is_device && info.gpu_direct != Some(false) && info.own_pages && fits;
                assert_eq!(has(CpuMappingKind::Gdrcopy), gdrcopy, "{info:?}");
                let dma_buf =
                    is_device && fits && info.dma_buf_mapping && options.mapping.is_none();
                assert_eq!(has(CpuMappingKind::DmaBuf), dma_buf, "{info:?} {options:?}");
                let suits = options.mapping.is_none_or(|wish| wish == info.host_mapping);
                let host = info.memory == MemoryKind::Host && info.host_access && suits;
                assert_eq!(
                    has(CpuMappingKind::HostMapped),
                    host,
                    "{info:?} {options:?}"
                );
            }
        }
    }

    #[test]
    fn the_reasons_are_told_in_words() {
        let info = CpuMappingInfo {
            gpu_direct: Some(false),
            ..CpuMappingInfo::of(MemoryKind::Device)
        };
        let options = CpuMappingOptions::new().refuse([CpuMappingKind::DmaBuf]);
        let text = CpuMappingChoice::new(&info, &options).to_string();
        assert!(
            text.starts_with("copies; not host-mapped: the memory is the device's"),
            "{text}"
        );
        assert!(text.contains("not dma-buf: not wanted"), "{text}");
        assert!(
            text.contains("not gdrcopy: no other device can access"),
            "{text}"
        );
        let full = CpuMappingInfo {
            bar1_needed: 2 << 20,
            bar1_free: Some(1 << 20),
            ..CpuMappingInfo::of(MemoryKind::Device)
        };
        let text = CpuMappingChoice::new(&full, &CpuMappingOptions::new()).to_string();
        assert!(
            text.contains("needs 2.0 MiB of BAR1, which has 1.0 MiB free"),
            "{text}"
        );
        let none = CpuMappingOptions::new().refuse(CpuMappingKind::ALL);
        assert!(
            CpuMappingChoice::new(&full, &none)
                .to_string()
                .starts_with("none; not")
        );
    }
}
