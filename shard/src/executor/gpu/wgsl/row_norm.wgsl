    // params: 3 stride of the source, or 0 where its rows are as wide.
    let base = row * select(params[3], cols, params[3] == 0u);
    var mean = 0.0;
    if (CENTER) {
        if (t < 16u) {
            var sum = 0.0;
            for (var i = t; i < cols; i = i + 16u) { sum = f_add(sum, src[base + i]); }
            lanes[t] = sum;
        }
        workgroupBarrier();
        mean = f_div(tree(), f32(cols));
        workgroupBarrier();
    }
    if (t < 16u) {
        var sum = 0.0;
        for (var i = t; i < cols; i = i + 16u) {
            let x = f_add(src[base + i], f_neg(mean));
            sum = f_fma(x, x, sum);
        }
        lanes[t] = sum;
    }
    workgroupBarrier();
    let variance = f_div(tree(), f32(cols));
    let inverse = f_div(1.0, f_sqrt(f_add(variance, bitcast<f32>(params[1]))));
    for (var i = t; i < cols; i = i + 64u) {
        let x = f_mul(f_add(src[base + i], f_neg(mean)), inverse);
        var y = 0.0;
        if (params[2] != 0u) { y = f_fma(x, weight[i], weight[cols + i]); } else { y = f_mul(x, weight[i]); }
        row_out[row * cols + i] = y;
    }
