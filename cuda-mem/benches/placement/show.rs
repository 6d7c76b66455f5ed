//! The rows as a table of Markdown, so that it can stand in a document.

use serde_json::Value;

pub(crate) fn table(report: &Value) {
    let text = |key: &str| report[key].as_str().unwrap_or("?");
    println!(
        "back end: {}, {}, CUDA {}, {}\n{}\n",
        text("backend"),
        text("device"),
        text("driver"),
        text("cpu"),
        text("method")
    );
    println!(
        "| kind | size | device writes, reads | one word | host writes, reads | one word | allocate + free |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in report["rows"].as_array().into_iter().flatten() {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "| {} | {} | {}, {} GB/s | {:.1}, {:.1} us | {}, {} GB/s | {}, {} ns | {} us |",
            row["kind"].as_str().unwrap_or("?"),
            size(row["bytes"].as_u64().unwrap_or(0)),
            short(number("device_write_gb_s")),
            short(number("device_read_gb_s")),
            number("device_word_write_us"),
            number("device_word_read_us"),
            short(number("host_write_gb_s")),
            short(number("host_read_gb_s")),
            short(number("host_word_write_ns")),
            short(number("host_word_read_ns")),
            short(number("allocate_us")),
        );
    }
}

/// Three figures that count.
fn short(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    }
}
