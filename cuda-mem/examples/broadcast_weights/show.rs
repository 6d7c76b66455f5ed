//! Results as a table and as JSON.

use cuda_mem_console::{bytes, count, figures, nanoseconds};
use serde_json::{Value, json};

use super::common::Heading;
use super::rank::Report;

pub(crate) fn table(heading: &Heading, report: &Report) -> String {
    let columns = [
        "rank",
        "tensors",
        "bytes",
        "time",
        "GB/s",
        "arena holds",
        "beside tensors",
    ];
    let mut table = figures(0, columns);
    for (rank, row) in report.rows.iter().enumerate() {
        table.add_row([
            rank.to_string(),
            count(row.tensors),
            bytes(row.bytes),
            nanoseconds(row.elapsed_ns as f64),
            format!("{:.2}", row.gigabytes_per_second()),
            bytes(row.reserved),
            bytes(row.overhead()),
        ]);
    }
    let checksum = report.checksum;
    format!("{heading}\n{table}\nchecksum {checksum:016x}, equal on all ranks")
}

pub(crate) fn json(heading: &Heading, report: &Report) -> Value {
    let rows = report.rows.iter().enumerate().map(|(rank, row)| {
        json!({
            "rank": rank, "tensors": row.tensors, "bytes": row.bytes, "elapsed_ns": row.elapsed_ns,
            "gigabytes_per_second": row.gigabytes_per_second(),
            "reserved_bytes": row.reserved, "overhead_bytes": row.overhead(),
        })
    });
    let mut object = heading.json();
    let checksum = format!("{:016x}", report.checksum);
    object.insert("checksum".to_owned(), checksum.into());
    object.insert("rows".to_owned(), rows.collect());
    object.into()
}
