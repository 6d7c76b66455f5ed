//! The rows of a log: its columns by their names, and what the fields mean.

use std::io::BufRead;

use crate::lines::{Fields, Lines};
use crate::unpack;

/// What is wrong, and in which line if it is of one line.
pub(crate) type Problem = (Option<u64>, String);

/// What a row tells. RMM's logs have the first three of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Memory was allocated.
    Allocate,
    /// Memory was freed, and may be used again in the order of its stream.
    Free,
    /// A request failed.
    AllocateFailure,
    /// A free was requested while several streams used the memory; until it is completed the memory is pending.
    FreeRequested,
    /// A requested free is completed.
    FreeCompleted,
    /// Physical memory was mapped at an address.
    Map,
    /// Physical memory was unmapped.
    Unmap,
    /// Memory was given back, down to a number of bytes that may stay.
    Trim,
    /// How many driver calls were made since the beginning.
    DriverCalls,
    /// How many events were lost before this row.
    Dropped,
    /// How many bytes a pool of the driver holds. The pointer tells pools apart.
    Reserved,
}

impl Action {
    /// All actions, with their names in a log.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Allocate, "allocate"),
        (Self::Free, "free"),
        (Self::AllocateFailure, "allocate failure"),
        (Self::FreeRequested, "free requested"),
        (Self::FreeCompleted, "free completed"),
        (Self::Map, "map"),
        (Self::Unmap, "unmap"),
        (Self::Trim, "trim"),
        (Self::DriverCalls, "driver calls"),
        (Self::Dropped, "dropped"),
        (Self::Reserved, "reserved"),
    ];

    fn named(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(action, _)| action).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            format!("the action is {text:?}, which is none of: {names}")
        })
    }
}

/// One row of a log. Fields are text until somebody needs them, so that the others may have any form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// Anything that tells threads apart. Logs without the column are of one thread.
    pub(crate) thread: &'a str,
    /// `None` if the log has no such column.
    pub(crate) time: Option<&'a str>,
    pub(crate) action: Action,
    pub(crate) pointer: &'a str,
    pub(crate) size: &'a str,
    pub(crate) stream: &'a str,
    /// Empty if it is not known.
    pub(crate) origin: &'a str,
}

/// Unpacks a log and hands over one row after the other.
pub(crate) fn for_each(
    packed: impl BufRead,
    mut take: impl FnMut(&Row<'_>) -> Result<(), String>,
) -> Result<(), Problem> {
    let unpacked =
        unpack::unpack(packed).map_err(|error| (None, format!("cannot be read: {error}")))?;
    let mut lines = Lines::new(unpacked);
    let mut fields = Fields::default();
    match lines.next() {
        Ok(line) => fields.split(line.unwrap_or_default()),
        // What is no text has no header either; what cannot be unpacked is something else.
        Err((Some(_), _)) => fields.split(""),
        Err(error) => return Err(error),
    }
    let columns = Columns::of(&fields).map_err(|problem| (None, problem))?;
    while let Some(line) = lines.next()? {
        fields.split(line);
        columns
            .row(&fields)
            .and_then(|row| take(&row))
            .map_err(|problem| (Some(lines.number), problem))?;
    }
    Ok(())
}

/// Where the columns are: those that every log has, and the others if they are there.
struct Columns {
    count: usize,
    thread: Option<usize>,
    time: Option<usize>,
    origin: Option<usize>,
    /// Action, pointer, size and stream.
    others: [usize; 4],
}

impl Columns {
    fn of(header: &Fields) -> Result<Self, String> {
        let names = ["Action", "Pointer", "Size", "Stream"];
        let place = |name: &str| header.iter().position(|found| found == name);
        let absent: Vec<&str> = names
            .into_iter()
            .filter(|name| place(name).is_none())
            .collect();
        if absent.is_empty() {
            return Ok(Self {
                count: header.len(),
                thread: place("Thread"),
                time: place("Time"),
                origin: place("Origin"),
                others: names.map(|name| place(name).unwrap_or_default()),
            });
        }
        let noun = if absent.len() == 1 {
            "column"
        } else {
            "columns"
        };
        Err(format!(
            "this is no allocation log: its first line lacks the {noun} {}; a log in RMM's format begins with \
             Thread,Time,Action,Pointer,Size,Stream",
            absent.join(", ")
        ))
    }

    fn row<'a>(&self, fields: &'a Fields) -> Result<Row<'a>, String> {
        let (found, expected) = (fields.len(), self.count);
        if found != expected {
            return Err(format!("has {found} fields and must have {expected}"));
        }
        let [action, pointer, size, stream] = self.others.map(|place| fields.get(place));
        let text = |place: Option<usize>| place.map(|place| fields.get(place));
        Ok(Row {
            thread: text(self.thread).unwrap_or_default(),
            time: text(self.time),
            action: Action::named(action)?,
            pointer,
            size,
            stream,
            origin: text(self.origin).unwrap_or_default(),
        })
    }
}

pub(crate) fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // RMM writes "(nil)" for null.
    if text == "(nil)" {
        return Ok(0);
    }
    u64::from_str_radix(digits, 16).map_err(|_| format!("the pointer is {text:?}, not an address"))
}

pub(crate) fn size(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("the size is {text:?}, not a number of bytes"))
}

/// A key that tells the streams of one log apart.
///
/// Logs have streams in hexadecimal with or without `0x`, or in decimal, and nothing says which.
/// All digits are read as hexadecimal: that keeps decimal numbers apart as well, and the null
/// stream is 0 in all forms. A decimal number can have more digits than 64 bits hold.
pub(crate) fn stream(text: &str) -> Result<u128, String> {
    if text == "(nil)" {
        return Ok(0);
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u128::from_str_radix(digits, 16)
        .map_err(|_| format!("the stream is {text:?}, not the number of one"))
}
