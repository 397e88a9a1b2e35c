//! Names of options in a prompt.

use crate::{FamilyContext, FamilyError};

/// In order: the letters, then the pairs of letters that are one token.
#[rustfmt::skip]
pub const LABELS: [&str; 255] = [
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T", "U", "V",
    "W", "X", "Y", "Z", "AA", "AB", "AC", "AD", "AE", "AF", "AG", "AH", "AI", "AJ", "AK", "AL", "AM", "AN", "AO",
    "AP", "AQ", "AR", "AS", "AT", "AU", "AV", "AW", "AX", "AY", "AZ", "BA", "BB", "BC", "BD", "BE", "BF", "BG",
    "BH", "BI", "BJ", "BK", "BL", "BM", "BN", "BO", "BP", "BR", "BS", "BT", "BU", "BV", "BW", "BX", "BY", "CA",
    "CB", "CC", "CD", "CE", "CF", "CG", "CH", "CI", "CK", "CL", "CM", "CN", "CO", "CP", "CR", "CS", "CT", "CU",
    "CV", "CW", "CX", "CY", "DA", "DB", "DC", "DD", "DE", "DF", "DG", "DH", "DI", "DJ", "DK", "DL", "DM", "DN",
    "DO", "DP", "DR", "DS", "DT", "DU", "DV", "DW", "DX", "DY", "EA", "EB", "EC", "ED", "EE", "EF", "EG", "EH",
    "EI", "EK", "EL", "EM", "EN", "EO", "EP", "EQ", "ER", "ES", "ET", "EU", "EV", "EW", "EX", "EZ", "FA", "FB",
    "FC", "FD", "FE", "FF", "FG", "FH", "FI", "FK", "FL", "FM", "FN", "FO", "FP", "FR", "FS", "FT", "FU", "FW",
    "FX", "FY", "GA", "GB", "GC", "GD", "GE", "GF", "GG", "GH", "GI", "GL", "GM", "GN", "GO", "GP", "GR", "GS",
    "GT", "GU", "GV", "GW", "GX", "GY", "HA", "HB", "HC", "HD", "HE", "HF", "HG", "HH", "HI", "HK", "HL", "HM",
    "HN", "HO", "HP", "HQ", "HR", "HS", "HT", "HU", "HV", "HW", "HX", "HY", "HZ", "IA", "IB", "IC", "ID", "IE",
    "IF", "IG", "IH", "II", "IJ", "IK", "IL", "IM", "IN", "IO", "IP", "IQ", "IR", "IS", "IT", "IU", "IV", "IW",
    "IX", "IZ", "JA", "JB", "JC", "JD", "JE", "JI", "JJ", "JK", "JM", "JO", "JP", "JR", "JS", "JT",
];

/// Each label is one token, and no two share one.
pub(super) fn check(cx: &FamilyContext) -> Result<(), FamilyError> {
    let mut ids = Vec::with_capacity(LABELS.len());
    for label in LABELS {
        ids.push((cx.one_token(label, &format!("label {label}"))?, label));
    }
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => {
            let reason = format!("labels {} and {} share a token", pair[0].1, pair[1].1);
            Err(FamilyError::Tokenizer { reason })
        }
    }
}
