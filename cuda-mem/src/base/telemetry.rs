//! Spans and events for the crate `tracing`, and gauges for the crate `metrics`, each with its feature. Without it nothing is
//! done here, and the arguments of the macros are not evaluated.

/// A span from here to the end of the block.
macro_rules! span {
    ($level:ident, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        let _span = ::tracing::span!(target: "cuda_mem", ::tracing::Level::$level, $($fields)*).entered();
    };
}
pub(crate) use span;

/// An event.
macro_rules! event {
    ($level:ident, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        ::tracing::event!(target: "cuda_mem", ::tracing::Level::$level, $($fields)*);
    };
}
pub(crate) use event;

/// A number that is published.
#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) value: Value,
}

#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// A gauge in bytes.
    Bytes(u64),
    /// A gauge.
    Count(u64),
    /// A counter, which never decreases.
    Total(u64),
}

/// Publishes numbers of something with this name, as the label `name`.
#[cfg(feature = "metrics")]
pub(crate) fn publish(name: &str, metrics: impl IntoIterator<Item = Metric>) {
    use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
    for metric in metrics {
        let (of, about, label) = (metric.name, metric.about, name.to_owned());
        match metric.value {
            Value::Bytes(bytes) => {
                describe_gauge!(of, Unit::Bytes, about);
                gauge!(of, "name" => label).set(bytes as f64);
            }
            Value::Count(count) => {
                describe_gauge!(of, Unit::Count, about);
                gauge!(of, "name" => label).set(count as f64);
            }
            Value::Total(total) => {
                describe_counter!(of, Unit::Count, about);
                counter!(of, "name" => label).absolute(total);
            }
        }
    }
}
