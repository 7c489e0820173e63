/// Defines `break_rule` and `broken` for an enum of rules that a test may switch off, one at a time, to see its loom
/// model fail without it.
///
/// Outside loom builds `broken` is the constant `false`.
#[doc(hidden)]
#[macro_export]
macro_rules! breakable {
    ($rule:ty) => {
        #[cfg(upoll_loom)]
        std::thread_local! {
            static BROKEN: core::cell::Cell<Option<$rule>> = const { core::cell::Cell::new(None) };
        }

        /// Switches `rule` off for the models that this thread runs from now on.
        #[cfg(upoll_loom)]
        pub fn break_rule(rule: Option<$rule>) {
            BROKEN.with(|cell| cell.set(rule));
        }

        /// Returns whether a test has switched `rule` off.
        #[cfg(upoll_loom)]
        pub fn broken(rule: $rule) -> bool {
            BROKEN.with(|cell| cell.get() == Some(rule))
        }

        /// Returns whether a test has switched the rule off.
        #[cfg(not(upoll_loom))]
        #[inline(always)]
        pub const fn broken(_rule: $rule) -> bool {
            false
        }
    };
}
