//! The clock as templates read it: `strftime` of a time the caller gives.

/// A calendar date and time of day, as the caller's clock shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateTime {
    /// For example 2026.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl DateTime {
    /// The date and time `seconds` after 1970-01-01T00:00:00.
    pub fn from_unix(seconds: u64) -> Self {
        let (mut days, time) = (seconds / 86_400, seconds % 86_400);
        let mut year = 1970;
        while days >= 365 + u64::from(leap(year)) && year < 9999 {
            days -= 365 + u64::from(leap(year));
            year += 1;
        }
        let mut month = 0;
        let len =
            |month: usize| [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month];
        while month < 11 && days >= len(month) {
            days -= len(month);
            month += 1;
        }
        Self {
            year: year as u16,
            month: month as u8 + 1,
            day: days.min(30) as u8 + 1,
            hour: (time / 3600) as u8,
            minute: (time / 60 % 60) as u8,
            second: (time % 60) as u8,
        }
    }

    /// 0 for Sunday (Sakamoto's method).
    fn weekday(&self) -> usize {
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4][usize::from(self.month.clamp(1, 12)) - 1];
        let year = usize::from(self.year) - usize::from(self.month < 3 && self.year > 0);
        (year + year / 4 - year / 100 + year / 400 + shift + usize::from(self.day)) % 7
    }

    fn day_of_year(&self) -> u32 {
        let before =
            [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][usize::from(self.month.clamp(1, 12)) - 1];
        before + u32::from(self.day) + u32::from(leap(self.year.into()) && self.month > 2)
    }

    /// `strftime` in the C locale; a directive that is not known here is copied.
    pub fn strftime(&self, format: &str) -> String {
        let month = MONTHS[usize::from(self.month.clamp(1, 12)) - 1];
        let day = DAYS[self.weekday()];
        let hour12 = (self.hour + 11) % 12 + 1;
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let unpadded = directive == Some('-');
            if unpadded {
                directive = chars.next();
            }
            let number = |value: u32, width: usize| {
                if unpadded { value.to_string() } else { format!("{value:0width$}") }
            };
            let part = match directive {
                Some('Y') => number(self.year.into(), 4),
                Some('y') => number(u32::from(self.year) % 100, 2),
                Some('m') => number(self.month.into(), 2),
                Some('d') => number(self.day.into(), 2),
                Some('e') => format!("{:>2}", self.day),
                Some('H') => number(self.hour.into(), 2),
                Some('I') => number(hour12.into(), 2),
                Some('M') => number(self.minute.into(), 2),
                Some('S') => number(self.second.into(), 2),
                Some('j') => number(self.day_of_year(), 3),
                Some('w') => number(self.weekday() as u32, 1),
                Some('p') => (if self.hour < 12 { "AM" } else { "PM" }).into(),
                Some('B') => month.into(),
                Some('b' | 'h') => month[..3].into(),
                Some('A') => day.into(),
                Some('a') => day[..3].into(),
                Some('F') => self.strftime("%Y-%m-%d"),
                Some('T' | 'X') => self.strftime("%H:%M:%S"),
                Some('D' | 'x') => self.strftime("%m/%d/%y"),
                Some('R') => self.strftime("%H:%M"),
                Some('c') => self.strftime("%a %b %e %H:%M:%S %Y"),
                Some('n') => "\n".into(),
                Some('t') => "\t".into(),
                Some('%') => "%".into(),
                // A time without a zone has neither name nor offset.
                Some('Z' | 'z') => String::new(),
                Some(other) => format!("%{other}"),
                None => "%".into(),
            };
            out.push_str(&part);
        }
        out
    }
}

fn leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}
