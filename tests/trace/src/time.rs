//! The times of a log: clocks of a day, or seconds.

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 60 * 60 * SECOND;

/// Turns the times of rows into nanoseconds since the first of them. Time never runs backwards.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    first: Option<u64>,
    /// What the row before said, without the days.
    before: u64,
    days: u64,
    latest: u64,
}

impl Clock {
    /// The time of the next row.
    pub(crate) fn next(&mut self, text: &str) -> Result<u64, String> {
        let read = clock(text).map(|time| (time, true));
        let read = read.or_else(|| seconds(text).map(|time| (time, false)));
        let (time, is_clock) = read.ok_or_else(|| {
            format!(
                "the time is {text:?}, neither a time of day such as 04:12:33.123456 nor a number of seconds"
            )
        })?;
        // Rows of several threads may be a little out of order, but not by half a day.
        if is_clock && time.saturating_add(DAY / 2) < self.before {
            self.days += 1;
        }
        self.before = time;
        let time = self.days.saturating_mul(DAY).saturating_add(time);
        let first = *self.first.get_or_insert(time);
        self.latest = self.latest.max(time.saturating_sub(first));
        Ok(self.latest)
    }
}

/// `04:12:33`, with a point or a colon and any number of digits behind it.
fn clock(text: &str) -> Option<u64> {
    let mut parts = text.splitn(3, ':');
    let (hours, minutes) = (parts.next()?, parts.next()?);
    let rest = parts.next()?;
    let (whole, digits) = rest.split_once([':', '.', ',']).unwrap_or((rest, "0"));
    let number = |text: &str, below: u64| {
        let number: u64 = text.parse().ok()?;
        (number < below).then_some(number)
    };
    // A leap second is the 60th.
    let seconds = (number(hours, 24)? * 60 + number(minutes, 60)?) * 60 + number(whole, 61)?;
    Some(seconds * SECOND + fraction(digits)?)
}

/// A plain number, with a fraction or an exponent.
fn seconds(text: &str) -> Option<u64> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
    if let (Ok(whole), Some(fraction)) = (whole.parse::<u64>(), fraction(digits)) {
        return whole.checked_mul(SECOND)?.checked_add(fraction);
    }
    let seconds: f64 = text.parse().ok()?;
    let representable = (0.0..1e9).contains(&seconds);
    representable.then_some((seconds * SECOND as f64).round() as u64)
}

/// Nanoseconds of the digits behind the point; what is finer is cut off.
fn fraction(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.bytes().chain(std::iter::repeat(b'0')).take(9);
    Some(digits.fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Result<Vec<u64>, String> {
        let mut clock = Clock::default();
        texts.iter().map(|text| clock.next(text)).collect()
    }

    #[test]
    fn forms_of_the_same_second() {
        for form in [
            ["10:58:16:345678", "10:58:17.345678"],
            ["10:58:16.345678999", "10:58:17.345678999"],
            ["00:00:59", "00:01:00"],
            ["7.25", "8.25"],
            ["5e-1", "1.5"],
            ["1700000000", "1700000001"],
        ] {
            assert_eq!(all(&form), Ok(vec![0, SECOND]), "{form:?}");
        }
    }

    #[test]
    fn a_step_back_is_midnight_or_disorder() {
        let night = ["23:59:59.5", "00:00:00.25", "00:00:01"];
        assert_eq!(all(&night), Ok(vec![0, 750_000_000, 1_500_000_000]));
        // Of two threads: the later row is not before the earlier one.
        let disorder = ["12:00:00.2", "12:00:00.4", "12:00:00.3", "12:00:00.5"];
        let expected = vec![0, 200_000_000, 200_000_000, 300_000_000];
        assert_eq!(all(&disorder), Ok(expected));
        assert_eq!(all(&["90000", "0"]), Ok(vec![0, 0]), "seconds know no days");
    }

    #[test]
    fn what_is_no_time_is_quoted() {
        for text in [
            "", "noon", "25:00:00", "10:61:00", "-1", "1:2", "1.-5", "nan",
        ] {
            let error = all(&[text]).expect_err(text);
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
