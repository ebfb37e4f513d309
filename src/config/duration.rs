//! Go's duration text (`1h2m3s`, `300ms`, `-1.5h`), read and written as `time.ParseDuration` and
//! `time.Duration.String` do. Pure.
//!
//! Differences that matter to users: a bare number is an error except for `0`, and units may be
//! repeated and fractional.

use std::{fmt, str::FromStr, time::Duration};

/// A signed span of time with Go's range: 64 bits of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(i64);

/// Why a text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("it is empty")]
    Empty,
    #[error("a number is missing")]
    Number,
    #[error("a unit is missing (300ms, 15s, 1h30m)")]
    MissingUnit,
    #[error("the unit is none of ns, us, ms, s, m, h")]
    UnknownUnit,
    #[error("it is out of range")]
    Range,
    #[error("it must not be negative")]
    Negative,
}

impl GoDuration {
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }
}

impl TryFrom<GoDuration> for Duration {
    type Error = ParseError;

    fn try_from(value: GoDuration) -> Result<Self, ParseError> {
        u64::try_from(value.0)
            .map(Self::from_nanos)
            .map_err(|_| ParseError::Negative)
    }
}

/// Reads a duration that must not be negative.
pub fn parse(text: &str) -> Result<Duration, ParseError> {
    GoDuration::from_str(text)?.try_into()
}

/// Writes a duration as Go prints it; what exceeds Go's 292 years is written as that limit.
pub fn format(duration: Duration) -> String {
    GoDuration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)).to_string()
}

impl FromStr for GoDuration {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (negative, mut rest) = match text.as_bytes().first() {
            None => return Err(ParseError::Empty),
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(ParseError::Number);
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (nanos, after) = component(rest)?;
            total = total.checked_add(nanos).ok_or(ParseError::Range)?;
            if total > i128::from(i64::MAX) + i128::from(negative) {
                return Err(ParseError::Range);
            }
            rest = after;
        }
        let signed = if negative { -total } else { total };
        i64::try_from(signed)
            .map(Self)
            .map_err(|_| ParseError::Range)
    }
}

/// One number with its unit, in nanoseconds, and what follows.
fn component(text: &str) -> Result<(i128, &str), ParseError> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(ParseError::Number);
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let unit: i128 = match name {
        "" => return Err(ParseError::MissingUnit),
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(ParseError::UnknownUnit),
    };
    let whole: i128 = match whole {
        "" => 0,
        digits => digits.parse().map_err(|_| ParseError::Range)?,
    };
    let nanos = whole
        .checked_mul(unit)
        .and_then(|n| n.checked_add(fraction_of(fraction, unit)))
        .ok_or(ParseError::Range)?;
    Ok((nanos, rest))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// `0.<fraction>` of a unit; digits below a nanosecond are cut off, as in Go.
fn fraction_of(fraction: &str, unit: i128) -> i128 {
    let mut scaled = 0;
    let mut place = unit * 1_000_000_000;
    for digit in fraction.bytes().take(22) {
        place /= 10;
        scaled += place * i128::from(digit - b'0');
    }
    scaled / 1_000_000_000
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => decimal(f, nanos, 1_000, "\u{b5}s"),
            1_000_000..1_000_000_000 => decimal(f, nanos, 1_000_000, "ms"),
            _ => {
                let minutes = nanos / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                decimal(f, nanos % 60_000_000_000, 1_000_000_000, "s")
            }
        }
    }
}

fn decimal(f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", value / unit)?;
    let rest = value % unit;
    if rest > 0 {
        let width = unit.ilog10() as usize;
        let digits = format!("{rest:0width$}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_texts_are_read_as_go_reads_them() {
        let cases: &[(&str, Result<i64, ParseError>)] = &[
            ("0", Ok(0)),
            ("-0", Ok(0)),
            ("300ms", Ok(300_000_000)),
            ("1h2m3s", Ok(3_723_000_000_000)),
            ("-1.5h", Ok(-5_400_000_000_000)),
            ("+5s", Ok(5_000_000_000)),
            (".5s", Ok(500_000_000)),
            ("1.s", Ok(1_000_000_000)),
            ("1us2\u{b5}s3\u{3bc}s", Ok(6_000)),
            ("9223372036854775807ns", Ok(i64::MAX)),
            ("-9223372036854775808ns", Ok(i64::MIN)),
            ("9223372036854775808ns", Err(ParseError::Range)),
            ("3000000h", Err(ParseError::Range)),
            ("", Err(ParseError::Empty)),
            ("-", Err(ParseError::Number)),
            ("s", Err(ParseError::Number)),
            (".s", Err(ParseError::Number)),
            ("1", Err(ParseError::MissingUnit)),
            ("1h2", Err(ParseError::MissingUnit)),
            ("1d", Err(ParseError::UnknownUnit)),
            ("1 s", Err(ParseError::UnknownUnit)),
            ("0x1s", Err(ParseError::UnknownUnit)),
        ];
        for (text, expected) in cases {
            let read = text.parse::<GoDuration>().map(GoDuration::as_nanos);
            assert_eq!(read, *expected, "{text:?}");
        }
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (300_000_000, "300ms"),
            (1_500_000_000, "1.5s"),
            (15_000_000_000, "15s"),
            (300_000_000_000, "5m0s"),
            (43_200_000_000_000, "12h0m0s"),
            (-5_400_000_000_000, "-1h30m0s"),
        ] {
            assert_eq!(GoDuration(nanos).to_string(), expected);
        }
    }

    #[test]
    fn a_negative_duration_is_refused_where_none_makes_sense() {
        assert_eq!(parse("-1s"), Err(ParseError::Negative));
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(nanos in any::<i64>()) {
            prop_assert_eq!(GoDuration(nanos).to_string().parse(), Ok(GoDuration(nanos)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
