//! Codes for options: one or two capital letters, each one token of the Qwen3.5 tokenizer, which is why some are left out.

/// In the order in which options get them.
#[rustfmt::skip]
pub const CODES: [&str; 255] = [
    "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "N", "O", "P", "Q", "R", "S", "T", "U",
    "V", "W", "X", "Y", "Z", "AA", "AB", "AC", "AD", "AE", "AF", "AG", "AH", "AI", "AJ", "AK", "AL", "AM", "AN",
    "AO", "AP", "AQ", "AR", "AS", "AT", "AU", "AV", "AW", "AX", "AY", "AZ", "BA", "BB", "BC", "BD", "BE", "BF",
    "BG", "BH", "BI", "BJ", "BK", "BL", "BM", "BN", "BO", "BP", "BR", "BS", "BT", "BU", "BV", "BW", "BX", "BY",
    "CA", "CB", "CC", "CD", "CE", "CF", "CG", "CH", "CI", "CK", "CL", "CM", "CN", "CO", "CP", "CR", "CS", "CT",
    "CU", "CV", "CW", "CX", "CY", "DA", "DB", "DC", "DD", "DE", "DF", "DG", "DH", "DI", "DJ", "DK", "DL", "DM",
    "DN", "DO", "DP", "DR", "DS", "DT", "DU", "DV", "DW", "DX", "DY", "EA", "EB", "EC", "ED", "EE", "EF", "EG",
    "EH", "EI", "EK", "EL", "EM", "EN", "EO", "EP", "EQ", "ER", "ES", "ET", "EU", "EV", "EW", "EX", "EZ", "FA",
    "FB", "FC", "FD", "FE", "FF", "FG", "FH", "FI", "FK", "FL", "FM", "FN", "FO", "FP", "FR", "FS", "FT", "FU",
    "FW", "FX", "FY", "GA", "GB", "GC", "GD", "GE", "GF", "GG", "GH", "GI", "GL", "GM", "GN", "GO", "GP", "GR",
    "GS", "GT", "GU", "GV", "GW", "GX", "GY", "HA", "HB", "HC", "HD", "HE", "HF", "HG", "HH", "HI", "HK", "HL",
    "HM", "HN", "HO", "HP", "HQ", "HR", "HS", "HT", "HU", "HV", "HW", "HX", "HY", "HZ", "IA", "IB", "IC", "ID",
    "IE", "IF", "IG", "IH", "II", "IJ", "IK", "IL", "IM", "IN", "IO", "IP", "IQ", "IR", "IS", "IT", "IU", "IV",
    "IW", "IX", "IZ", "JA", "JB", "JC", "JD", "JE", "JI", "JJ", "JK", "JM", "JO", "JP", "JR", "JS", "JT",
];
