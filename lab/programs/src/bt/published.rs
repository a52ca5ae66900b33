//! The norms after the last step, as the NAS Parallel Benchmarks (version 3.4, BT) publish them for their classes.

// Digits as they were published.
#![allow(clippy::excessive_precision)]

use super::{largest, Class, Norms, COMPONENTS};

/// Those of the class.
pub(super) fn norms(class: Class) -> Norms {
    let (residual, error) = match class {
        Class::S => (
            [
                1.7034283709541311e-1,
                1.2975252070034097e-2,
                3.2527926989486055e-2,
                2.6436421275166801e-2,
                1.921_178_413_174_443e-1,
            ],
            [
                4.9976913345811579e-4,
                4.5195666782961927e-5,
                7.3973765172921357e-5,
                7.3821238632439731e-5,
                8.9269630987491446e-4,
            ],
        ),
        Class::W => (
            [112.5590409344, 11.80007595731, 27.10329767846, 24.69174937669, 263.8427874317],
            [4.419655736008, 0.4638531260002, 1.011551749967, 0.9235878729944, 10.18045837718],
        ),
        Class::A => (
            [
                108.06346714637264,
                11.319730901220813,
                25.974354511582465,
                23.66562254467891,
                252.78963211748344,
            ],
            [
                4.2348416040525025,
                0.443_902_824_969_957,
                0.966_924_801_363_456_5,
                0.883_020_630_397_654_7,
                9.737_990_177_082_928,
            ],
        ),
        Class::B => (
            [
                1423.3597229287254,
                99.330522590150238,
                356.46025644535285,
                324.85447959084092,
                3270.7541254659363,
            ],
            [
                52.969847140936856,
                4.4632896115670668,
                13.122573342210174,
                12.006925323559144,
                124.59576151035986,
            ],
        ),
    };
    Norms { residual, error }
}

/// Steps from one dump to the next there.
pub(super) const DUMP_EVERY: u64 = 5;

/// The largest relative difference to the norms of the error, the mean over dumps, as BTIO publishes them.
pub(super) fn dump_difference(class: Class, error: &[f64; COMPONENTS]) -> f64 {
    let published = match class {
        Class::S => [11.49036328945, 0.9156788904727, 2.857899428614, 2.598273346734, 26.52795397547],
        Class::W => [67.29594398612, 5.264523081690, 16.77107142637, 15.08721463436, 147.7018363393],
        Class::A => [64.82218724961, 5.066461714527, 16.13931961359, 14.52010201481, 142.0099377681],
        Class::B => [147.7545106464, 11.08895555053, 36.98065590331, 33.10505581440, 315.7928282563],
    };
    largest(error.iter().copied().zip(published))
}
