//! The choice between the plain convolution and the forms, by estimated times.

use super::{form::Form, recognise::Convolution};
use symshape::Dim;

/// A method, and the sizes of images for which it is used.
pub(super) struct Variant {
    /// The form, or `None` for the plain convolution.
    pub(super) form: Option<&'static Form>,
    /// One at the sizes at which the method is used, and zero at others.
    pub(super) selected: Dim,
}

/// The time to begin and to store a sum of floats, in multiply-adds. It matters where sums are short, as those of a
/// form with few channels are.
const SUM_COST: i64 = 12;

/// The number of rows whose multiply-adds take as long as reading their weight from the third-level cache.
const ROWS_TO_HIDE_CACHE: i64 = 11;

/// The same for reading it from main memory.
const ROWS_TO_HIDE_MEMORY: i64 = 22;

/// The most bytes of the weights of a model that stay in the third-level cache from one call to the next.
const MAX_CACHED_BYTES: i64 = 16 << 20;

/// The largest ratio of a form's estimated time to that of the plain convolution.
const MAX_RATIO: (i64, i64) = (9, 10);

/// The same for a form that is used for large images only. The artefact holds the plain filters besides those of the
/// form, so those of few bytes may save less.
const MAX_RATIO_OF_SECOND: (i64, i64) = (6, 10);

/// See [`MAX_RATIO_OF_SECOND`].
const MAX_RATIO_OF_FEW_BYTES: (i64, i64) = (17, 20);

/// The most bytes of the filters of a form that are few.
const FEW_BYTES: i64 = 2 << 20;

/// The most bytes of the filters of a form that is used for large images only.
const MAX_BYTES_OF_SECOND: i64 = 16 << 20;

/// The largest side of an image up to which two methods are compared.
const MAX_SIDE: i64 = 64;

/// The cost for each channel of the change of basis of a tile's inputs and outputs, in multiply-adds of one lane.
fn change_cost(form: &Form, is_whole: bool) -> (i64, i64) {
    let square = square_change_cost(form, is_whole);
    if form.axis(1).taps() > 1 {
        return square;
    }
    // A column of tiles has the cost of one of its columns.
    let columns = form.axis(0).inputs() as i64;
    (square.0 / columns, square.1 / columns)
}

/// The same for a form with a window on both axes and the same number of outputs down a column.
const fn square_change_cost(form: &Form, is_whole: bool) -> (i64, i64) {
    let axis = form.axis(0);
    match (axis.outputs(), axis.stride, is_whole) {
        (2, 1, false) => (70, 60),
        (2, _, false) => (100, 90),
        (_, 1, false) => (220, 200),
        (_, _, false) => (400, 360),
        // Multiply-adds of pairs, the unit here, are faster than those of floats.
        (2, _, true) => (120, 110),
        (_, _, true) => (380, 350),
    }
}

/// Estimates of the time that one image takes, in multiply-adds of one lane. `None` is more than fits.
struct Costs<'c> {
    convolution: &'c Convolution,
    /// Whether the plain convolution multiplies four bytes in one step, and the forms two integers.
    multiplies_bytes: bool,
    /// The number of rows whose multiply-adds take as long as reading their weight.
    rows_to_hide_reading: i64,
}

/// The methods for a convolution: one for all sizes, or one for small images and one for large ones.
///
/// The weights of the model have `weight_bytes` bytes.
pub(super) fn variants(convolution: &Convolution, multiplies_bytes: bool, weight_bytes: i64) -> Vec<Variant> {
    let is_cached = weight_bytes <= MAX_CACHED_BYTES;
    let costs = Costs {
        convolution,
        multiplies_bytes: multiplies_bytes && convolution.is_whole,
        rows_to_hide_reading: if is_cached { ROWS_TO_HIDE_CACHE } else { ROWS_TO_HIDE_MEMORY },
    };
    let [min_size, max_size] = convolution.sizes();
    let [small, large] = [min_size, max_size].map(|size| costs.cheapest(size, i64::MAX));
    let outputs = |form: Option<&'static Form>| form.map(Form::outputs);
    let only = |form| vec![Variant { form, selected: Dim::one() }];
    if outputs(small) == outputs(large) {
        return only(large);
    }
    let pays = |form: &Form| {
        let has_few_bytes = convolution.filter_bytes(form) <= FEW_BYTES;
        let max_ratio = if has_few_bytes { MAX_RATIO_OF_FEW_BYTES } else { MAX_RATIO_OF_SECOND };
        costs.is_below(form, small, max_size, max_ratio) == Some(true)
    };
    let large = if large.is_some() {
        let second = costs.cheapest(max_size, MAX_BYTES_OF_SECOND);
        let second = second.filter(|form| outputs(small) != Some(form.outputs()) && pays(form));
        if second.is_none() {
            return only(small);
        }
        second
    } else {
        None
    };

    let sizes = |side: i64| if convolution.is_column() { [side * side, 1] } else { [side; 2] };
    let is_faster = |side: &i64| costs.of(large, sizes(*side)) < costs.of(small, sizes(*side));
    let Some(side) = (1..=MAX_SIDE).find(is_faster) else { return only(small) };
    let area = Dim::product(convolution.size.iter().map(|axis| axis.extent.clone()));
    let is_large = area.floor_div(side * side).min(Dim::one());
    let is_small = Dim::one() - &is_large;
    vec![Variant { form: small, selected: is_small }, Variant { form: large, selected: is_large }]
}

impl Costs<'_> {
    /// The form with the smallest time, if that is well below the plain convolution's, and filters of at most so many
    /// bytes.
    fn cheapest(&self, size: [i64; 2], max_bytes: i64) -> Option<&'static Form> {
        let forms =
            self.convolution.forms().iter().filter(|form| {
                self.convolution.allows(form) && self.convolution.filter_bytes(form) <= max_bytes
            });
        let timed = forms.filter_map(|form| Some((form, self.of(Some(form), size)?)));
        let (form, _) = timed.min_by_key(|(_, time)| *time)?;
        self.is_below(form, None, size, MAX_RATIO)?.then_some(form)
    }

    /// Whether the ratio of the times of `form` and of `other` is below `ratio`.
    fn is_below(&self, form: &Form, other: Option<&Form>, size: [i64; 2], ratio: (i64, i64)) -> Option<bool> {
        let [time, limit] = [self.of(Some(form), size)?, self.of(other, size)?];
        Some(time.checked_mul(ratio.1)? < limit.checked_mul(ratio.0)?)
    }

    /// The time of a form or of the plain convolution.
    fn of(&self, form: Option<&Form>, [height, width]: [i64; 2]) -> Option<i64> {
        let Convolution { columns, is_whole, .. } = *self.convolution;
        let depth = self.convolution.depth();
        let sum_cost = if is_whole { 0 } else { SUM_COST };
        let products = |filters: i64, depth: i64, rows: i64| {
            let multiplied = depth.checked_mul(rows.max(self.rows_to_hide_reading))?;
            let sums = rows.checked_mul(sum_cost)?;
            filters.checked_mul(columns)?.checked_mul(multiplied.checked_add(sums)?)
        };

        let Some(form) = form else {
            let plain_depth = self.convolution.plain_products().checked_mul(self.convolution.channels)?;
            let plain = products(1, plain_depth, height.checked_mul(width)?)?;
            return Some(if self.multiplies_bytes { plain / 2 } else { plain });
        };

        let [down, across] = form.outputs().map(|outputs| outputs as i64);
        let tiles = ((height + down - 1) / down).checked_mul((width + across - 1) / across)?;
        let (before, after) = change_cost(form, is_whole);
        let lanes = |channels: i64| (channels as u64).next_multiple_of(8) as i64;
        let changes = (before * lanes(depth)).checked_add(after * lanes(columns))?;
        let groups = form.groups();
        let of_groups = groups.iter().map(|group| {
            let rows = tiles.checked_mul(group.points_of_filter() as i64)?;
            products(group.filter_count() as i64, depth, rows)
        });
        let multiplied = of_groups.sum::<Option<i64>>()?;
        multiplied.checked_add(tiles.checked_mul(changes)?)
    }
}
