<?php

/*
 * The order application of util/demo: deliberately naive.  It knows nothing of
 * idempotency keys: whatever is posted is charged and executed, each time.
 * nginx runs it twice with separate lists, as SHOP unprotected and protected.
 *
 *   GET  /                     both shops side by side
 *   GET  /SHOP/                one shop: a form, and what was executed
 *   POST /SHOP/orders          what a plain HTML form sends; answers 303
 *   GET  /SHOP/api/orders      the list of executed orders, JSON
 *   POST /SHOP/api/orders      {"item":"book","quantity":1}; answers 201
 *   GET  /SHOP/api/orders/N    one order
 */

const PRICES = ['book' => 19.00, 'mug' => 12.50, 'poster' => 8.00];

/* the payment provider takes its time: what makes people click twice */
const PAYMENT_SECONDS = 1;


main($_SERVER['SHOP'] ?? '', $_SERVER['REQUEST_METHOD']);


function main(string $shop, string $method): void
{
    $path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);

    if ($shop === '') {
        page(['unprotected', 'protected']);
        return;
    }

    $path = substr($path, strlen("/$shop"));

    if ($method === 'POST' && $path === '/orders') {
        $order = execute($shop, $_POST);
        header("Location: /$shop/#order-$order[id]", true, 303);

    } elseif ($method === 'POST' && $path === '/api/orders') {
        $sent = json_decode(file_get_contents('php://input'), true);
        $order = execute($shop, is_array($sent) ? $sent : []);
        header("Location: /$shop/api/orders/$order[id]");
        json(201, $order);

    } elseif ($path === '/api/orders') {
        json(200, executed($shop));

    } elseif (preg_match('~^/api/orders/([0-9]+)$~D', $path, $m)) {
        $order = executed($shop)[$m[1] - 1] ?? null;
        json($order ? 200 : 404, $order ?? ['error' => 'no such order']);

    } elseif ($path === '/') {
        page([$shop]);

    } else {
        json(404, ['error' => 'not found']);
    }
}


/* charges the card and appends the order to the list; asks no questions */
function execute(string $shop, array $sent): array
{
    $item = $sent['item'] ?? null;
    $quantity = filter_var($sent['quantity'] ?? null, FILTER_VALIDATE_INT,
                           ['options' => ['min_range' => 1, 'max_range' => 9]]);

    if (!is_string($item) || !isset(PRICES[$item]) || $quantity === false) {
        json(422, ['error' => 'item is one of ' . implode(', ', array_keys(PRICES))
                              . '; quantity is 1 to 9']);
        exit;
    }

    sleep(PAYMENT_SECONDS);

    $list = fopen(list_of($shop), 'c+');
    flock($list, LOCK_EX);

    for ($id = 1; fgets($list) !== false; $id++);

    $order = [
        'id' => $id,
        'item' => $item,
        'quantity' => $quantity,
        'charged' => number_format(PRICES[$item] * $quantity, 2, '.', ''),
        'receipt' => bin2hex(random_bytes(4)),
        'key' => $_SERVER['HTTP_IDEMPOTENCY_KEY'] ?? $_GET['submission'] ?? null,
        'at' => date('H:i:s'),
        'from' => str_starts_with($_SERVER['HTTP_USER_AGENT'] ?? '', 'curl') ? 'terminal' : '',
    ];

    fwrite($list, json_encode($order) . "\n");
    fclose($list);

    return $order;
}


function executed(string $shop): array
{
    $lines = @file(list_of($shop)) ?: [];

    return array_map(fn ($line) => json_decode($line, true), $lines);
}


/* which of them were executed before, by their numbers: those with the key and
   the content of an earlier one */
function doubles(array $orders): array
{
    $seen = $doubles = [];

    foreach ($orders as $order) {
        $what = json_encode([$order['key'], $order['item'], $order['quantity']]);

        if ($order['key'] !== null && isset($seen[$what])) {
            $doubles[$order['id']] = true;
        }

        $seen[$what] = true;
    }

    return $doubles;
}


function list_of(string $shop): string
{
    return __DIR__ . "/$shop.orders";
}


function json(int $status, array $value): void
{
    http_response_code($status);
    header('Content-Type: application/json');
    header('Cache-Control: no-store');
    echo json_encode($value), "\n";
}


/* one key per page view: whatever this page sends is one and the same order */
function page(array $shops): void
{
    $key = vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex(random_bytes(16)), 4));
    $options = '';

    foreach (PRICES as $item => $price) {
        $options .= sprintf('<option value="%s">%s, %.2f</option>', $item, $item, $price);
    }

    header('Content-Type: text/html; charset=utf-8');
    header('Cache-Control: no-store');
    include __DIR__ . '/page.php';
}
