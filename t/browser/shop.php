<?php

/*
 * What WooCommerce's checkout sends, for t/woocommerce.t: a nonce and the
 * attribution fields, which are others on each page, and cookies that tick.
 * Each order that gets here is one, with its text in DATABASE.orders.
 */

$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
$ajax = $_GET['wc-ajax'] ?? '';
$nonce = bin2hex(random_bytes(5));

function add($file, $text) {
    file_put_contents("$_SERVER[DATABASE].$file", "$text\n", FILE_APPEND | LOCK_EX);
}

if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    $sent = $_POST ?: json_decode(file_get_contents('php://input'), true);

    if ($ajax === 'add_to_cart') {
        add('cart', $sent['product_id']);
        exit;
    }

    add('begun', '.');

    for ($i = 0; $i < 6000 && file_exists("$_SERVER[DATABASE].hold"); $i++) {
        usleep(10000);
        clearstatcache();
    }

    add('orders', $sent['order_comments'] ?? $sent['customer_note']);
    $number = count(file("$_SERVER[DATABASE].orders"));

    // an account is made with the order
    setcookie('wordpress_logged_in_abc', "customer|$number", ['path' => '/']);

    if ($path === '/checkout/') {
        header("Location: /order-received/$number", true, 302);

    } else {
        header('Content-Type: application/json');
        echo json_encode(['result' => 'success', 'redirect' => "/order-received/$number"]);
    }

    exit;
}

header('Content-Type: text/html; charset=utf-8');

if (preg_match('~^/order-received/(\d+)~', $path, $m)) {
    exit("<!DOCTYPE html><link rel=icon href=data:,><h1>Order $m[1]</h1>");
}

setcookie('_ga_ABC', "GS1.1.$nonce", ['path' => '/']);
setcookie('sbjs_session', "pgs%3D$nonce", ['path' => '/']);
?>
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Checkout</title>
<link rel="icon" href="data:,">
</head>
<body>
<form name="checkout" method="post" action="/checkout/">
<input name="billing_first_name" value="Ann">
<input name="order_comments">
<input name="payment_method" type="radio" value="cod" checked>
<input type="hidden" name="woocommerce-process-checkout-nonce" value="<?= $nonce ?>">
<input type="hidden" name="_wp_http_referer" value="/checkout/?<?= $nonce ?>">
<input type="hidden" name="wc_order_attribution_source_type" value="typein">
<input type="hidden" name="wc_order_attribution_session_start_time" value="<?= date('Y-m-d H:i:s') . $nonce ?>">
<input type="hidden" name="wc_order_attribution_session_pages" value="<?= random_int(1, 1 << 30) ?>">
<input type="hidden" name="wc_order_attribution_session_count" value="1">
<button name="woocommerce_checkout_place_order" value="Place order">Place order</button>
</form>
<script>
'use strict';

const form = document.forms.checkout;
const blocks = location.search === '?blocks';

async function order() {
    const answer = await fetch(...blocks ? ['/wp-json/wc/store/v1/checkout', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', 'Nonce': '<?= $nonce ?>' },
        body: JSON.stringify({
            billing_address: { first_name: 'Ann' },
            customer_note: form.order_comments.value,
            payment_method: 'cod',
            extensions: { 'woocommerce/order-attribution': { session_pages: '<?= $nonce ?>' } },
        }),
    }] : ['/?wc-ajax=checkout', {
        method: 'POST',
        headers: { 'X-Requested-With': 'XMLHttpRequest',
                   'Accept': 'application/json, text/javascript, */*; q=0.01' },
        body: new URLSearchParams(new FormData(form)),
    }]);

    return answer.json();
}

form.addEventListener('submit', async function (event) {
    event.preventDefault();
    location.href = (await order()).redirect;
});
</script>
</body>
</html>
