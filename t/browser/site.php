<?php

/*
 * A site as there are many, for t/forms.t: one logs in, comments, orders, votes.
 * It knows nothing of double submits.  All that it does is written down in
 * DATABASE, one row each.
 *
 *   /          a page with its forms
 *   /login, /logout, /comment, /order
 *              what they send; all are answered with a redirect to the page
 *   /vote      what a script sends
 *
 * While DATABASE.hold is there, none gets on; DATABASE.begun has a byte for each.
 *
 * The session begins with a login and ends with a logout, its cookie as well.
 * Statistics set a cookie anew with each page, and each page has a csrf_token.
 */

$db = new PDO('sqlite:' . $_SERVER['DATABASE']);
$db->exec('PRAGMA busy_timeout = 60000');
$db->exec('CREATE TABLE IF NOT EXISTS done (what TEXT, who TEXT, text TEXT)');
$db->exec('CREATE TABLE IF NOT EXISTS sessions (id TEXT, user TEXT)');

function run($sql, ...$values) {
    global $db;

    $query = $db->prepare($sql);
    $query->execute($values);

    return $query->fetchColumn();
}

$path = parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
$session = $_COOKIE['session'] ?? '';
$user = run('SELECT user FROM sessions WHERE id = ?', $session);

if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    $what = substr($path, 1);
    $who = $user ?: $_POST['user'] ?? '';

    // what makes people click twice
    file_put_contents("$_SERVER[DATABASE].begun", '.', FILE_APPEND);

    for ($i = 0; $i < 6000 && file_exists("$_SERVER[DATABASE].hold"); $i++) {
        usleep(10000);
        clearstatcache();
    }

    run('INSERT INTO done VALUES (?, ?, ?)', $what, $who, $_POST['text'] ?? '');

    if ($what === 'login') {
        $session = bin2hex(random_bytes(16));
        run('INSERT INTO sessions VALUES (?, ?)', $session, $who);
        setcookie('session', $session, ['path' => '/', 'httponly' => true]);

    } elseif ($what === 'logout') {
        run('DELETE FROM sessions WHERE id = ?', $session);
        setcookie('session', '', ['path' => '/', 'expires' => 1]);

    } elseif ($what === 'vote') {
        header('Content-Type: application/json');
        exit(json_encode(['votes' => run('SELECT count(*) FROM done WHERE what = ?', $what)]));
    }

    header('Location: /', true, 303);
    exit;
}

if ($path !== '/') {
    http_response_code($path === '/404' ? 404 : 200);
    header('Content-Type: image/gif');
    exit;
}

header('Content-Type: text/html; charset=utf-8');
setcookie('_ga_ABC', bin2hex(random_bytes(4)), ['path' => '/']);
$csrf = '<input type="hidden" name="csrf_token" value="' . bin2hex(random_bytes(8)) . '">';
?>
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>A site</title>
<link rel="icon" href="data:,">
</head>
<body>
<h1>Hello, <?= $user ? htmlspecialchars($user) : 'stranger' ?></h1>
<?php if ($user): ?>
<form id="logout" method="post" action="/logout"><?= $csrf ?><button>Log out</button></form>
<?php else: ?>
<form id="login" method="post" action="/login"><?= $csrf ?>
  <input name="user" value="Ann"><input name="password" type="password" value="secret">
  <button>Log in</button></form>
<?php endif ?>
<form id="comment" method="post" action="/comment"><?= $csrf ?>
  <input name="text"><button>Comment</button></form>
<form id="order" method="post" action="/order"><?= $csrf ?>
  <input name="text"><button>Order</button></form>
<p><?= run('SELECT count(*) FROM done WHERE what = ?', 'comment') ?> comments</p>
</body>
</html>
