//! Deltagate's gRPC contract, generated from the `.proto` files beside this crate.
//!
//! The documentation of every message lives in the `.proto` files: they are the contract.

/// Package `deltagate.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub mod v1 {
    tonic::include_proto!("deltagate.v1");
}

impl v1::KernelFamily {
    /// Its name in configuration, spans, metrics and reports: the enum value without its prefix, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Embed => "embed",
            Self::Norm => "norm",
            Self::Projection => "projection",
            Self::Conv1d => "conv1d",
            Self::DeltaRule => "delta_rule",
            Self::GatedNorm => "gated_norm",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Readout => "readout",
            Self::Launch => "launch",
        }
    }
}

/// Encoded `FileDescriptorSet` of `deltagate.v1` and what it imports, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("deltagate");

#[cfg(test)]
mod tests {
    use super::v1::KernelFamily;

    #[test]
    fn names_are_the_enum_values_in_lower_case() {
        for number in 0.. {
            let Ok(family) = KernelFamily::try_from(number) else {
                assert!(number > 1, "the enum has values");
                break;
            };
            let value = family.as_str_name().trim_start_matches("KERNEL_FAMILY_");
            assert_eq!(family.name(), value.to_ascii_lowercase());
        }
    }
}
