//! From probe reports to the messages of the capability service.

use deltagate_kernels_api::{
    BindingReport, BindingState, CandidateReport, FamilyBinding, KernelFamily, Preference, ProbeStage,
};
use deltagate_mesh::wire::duration;
use deltagate_proto::v1;

use crate::engine::DeviceIdentity;

/// The wire name of a kernel family.
pub(crate) fn family(family: KernelFamily) -> v1::KernelFamily {
    match family {
        KernelFamily::Embed => v1::KernelFamily::Embed,
        KernelFamily::Norm => v1::KernelFamily::Norm,
        KernelFamily::Projection => v1::KernelFamily::Projection,
        KernelFamily::Conv1d => v1::KernelFamily::Conv1d,
        KernelFamily::DeltaRule => v1::KernelFamily::DeltaRule,
        KernelFamily::GatedNorm => v1::KernelFamily::GatedNorm,
        KernelFamily::Attention => v1::KernelFamily::Attention,
        KernelFamily::Mlp => v1::KernelFamily::Mlp,
        KernelFamily::Readout => v1::KernelFamily::Readout,
        KernelFamily::Launch => v1::KernelFamily::Launch,
    }
}

/// Every binding of a report.
pub(crate) fn bindings(report: &BindingReport) -> Vec<v1::KernelBinding> {
    report.bindings.iter().map(binding).collect()
}

/// The device of a snapshot. A CPU has no compute capability, and is told from others by its host's name.
pub(crate) fn device(device: &DeviceIdentity) -> v1::DeviceInfo {
    let cpu = device.kind == "cpu";
    v1::DeviceInfo {
        kind: device.kind.clone(),
        name: device.name.clone(),
        compute_capability: if cpu {
            String::new()
        } else {
            device.compute_capability.clone()
        },
        id: if cpu {
            host_name().unwrap_or_else(|| device.id.clone())
        } else {
            device.id.clone()
        },
    }
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

fn binding(bound: &FamilyBinding) -> v1::KernelBinding {
    let state = match bound.state {
        BindingState::Bound => v1::BindingState::Bound,
        BindingState::Missing => v1::BindingState::Missing,
        BindingState::ProbeFailed => v1::BindingState::ProbeFailed,
    };
    let preference = match &bound.preference {
        Preference::Auto => vec!["auto".to_owned()],
        named => named.names().to_vec(),
    };
    v1::KernelBinding {
        family: family(bound.family).into(),
        state: state.into(),
        backend: bound.backend.clone(),
        version: bound.version.clone(),
        source_digest: bound.source_digest.clone(),
        preference,
        candidates: bound.candidates.iter().map(candidate).collect(),
    }
}

fn candidate(report: &CandidateReport) -> v1::CandidateReport {
    let stage = match report.stage {
        ProbeStage::None => v1::ProbeStage::Unspecified,
        ProbeStage::Present => v1::ProbeStage::Present,
        ProbeStage::Loadable => v1::ProbeStage::Loadable,
        ProbeStage::Correct => v1::ProbeStage::Correct,
        ProbeStage::Timed => v1::ProbeStage::Timed,
    };
    let times = report.times.iter().map(|time| v1::ProbeTime {
        tokens: u32::try_from(time.tokens).unwrap_or(u32::MAX),
        median: Some(duration(time.median)),
    });
    v1::CandidateReport {
        backend: report.backend.clone(),
        version: report.version.clone(),
        source_digest: report.source_digest.clone(),
        stage: stage.into(),
        passed: report.passed,
        reason: report.reason.clone(),
        relative_l2: report.relative_l2,
        worst_element: report.worst_element,
        times: times.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{KernelFamily, family};

    #[test]
    fn a_kernel_family_has_one_name_in_configuration_and_on_the_wire() {
        for own in KernelFamily::ALL {
            assert_eq!(own.as_str(), family(own).name());
        }
    }
}
