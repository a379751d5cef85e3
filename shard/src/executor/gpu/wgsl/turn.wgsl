// Turns the first `turning` values of x by the angles of a row; the two of a pair lie side by side, or half of them apart.
fn turn(row: u32, turning: u32, apart: u32, t: u32) {
    for (var pair = t; pair < turning / 2u; pair = pair + 64u) {
        var low = 2u * pair;
        var high = low + 1u;
        if (apart != 0u) {
            low = pair;
            high = pair + turning / 2u;
        }
        let cosine = angles[row * turning + 2u * pair];
        let sine = angles[row * turning + 2u * pair + 1u];
        let a = x[low];
        let b = x[high];
        x[low] = f_fma(a, cosine, f_neg(f_mul(b, sine)));
        x[high] = f_fma(a, sine, f_mul(b, cosine));
    }
}

