<?php

/*
 * A form as there are many: each POST inserts a row, then redirects to a page
 * that says thank you.  It knows nothing of double submits, nothing was changed
 * in it for legacy-form.conf, and DATABASE is all that it is told.
 */

$db = new PDO('sqlite:' . $_SERVER['DATABASE']);
$db->exec('PRAGMA busy_timeout = 5000');
$db->exec('CREATE TABLE IF NOT EXISTS bookings
           (id INTEGER PRIMARY KEY, name TEXT, seats INTEGER, note TEXT)');

function html($text) {
    return htmlspecialchars($text, ENT_QUOTES, 'UTF-8');
}

if ($_SERVER['REQUEST_METHOD'] === 'POST') {

    // reserving takes its time: what makes people click twice
    usleep(300000);

    $row = $db->prepare('INSERT INTO bookings (name, seats, note) VALUES (?, ?, ?)');
    $row->execute([$_POST['name'] ?? '', $_POST['seats'] ?? '', $_POST['note'] ?? '']);

    header('Location: ?booking=' . $db->lastInsertId(), true, 303);

} else {
    header('Content-Type: text/html; charset=utf-8');
?>
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Book a workshop</title>
<link rel="icon" href="data:,">
<style>
body { font: 1rem/1.5 sans-serif; max-width: 30rem; margin: 2rem auto; padding: 0 1rem }
label { display: block; margin: .75rem 0 }
input, textarea, button { font: inherit; padding: .4rem; box-sizing: border-box }
input, textarea { display: block; width: 100% }
</style>
</head>
<body>
<?php

    if (isset($_GET['booking'])) {
        $row = $db->prepare('SELECT * FROM bookings WHERE id = ?');
        $row->execute([$_GET['booking']]);
        $booking = $row->fetch(PDO::FETCH_ASSOC);
    }

    if (!empty($booking)) {
?>
<h1>Thank you, <?= html($booking['name']) ?></h1>
<p>Your booking has the number <b><?= $booking['id'] ?></b>: <?= html($booking['seats']) ?> seat(s).</p>
<p><a href="?">Another booking</a></p>
<?php
    } else {
?>
<h1>Book a workshop</h1>
<form method="post">
<label>Name <input name="name" required></label>
<label>Seats <input name="seats" type="number" min="1" value="1" required></label>
<label>Note <textarea name="note" rows="3"></textarea></label>
<p><button>Book now</button></p>
</form>
<?php
    }
?>
</body>
</html>
<?php
}
