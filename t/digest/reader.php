<?php

// What a PHP application sees of a body, as a line of text.  Run by php -S;
// the path tells the kind.  Order counts but for the names at the top.

function text($value)
{
    if (is_object($value) || is_array($value)) {
        $text = is_object($value) ? '{' : '[';
        $members = (array) $value;

        if (is_object($value)) {
            ksort($members, SORT_STRING);
        }

        foreach ($members as $name => $member) {
            $text .= strlen($name) . ":$name=" . text($member) . ',';
        }

        return "$text.";
    }

    // 1 and 1.0 are one number

    return is_int($value) || is_float($value) ? 'n' . ((float) $value + 0.0)
         : gettype($value)[0] . strlen((string) $value) . ":$value";
}

if ($_SERVER['SCRIPT_NAME'] === '/json') {
    $value = json_decode(file_get_contents('php://input'), false, 600);
    $read = json_last_error() ? 'none' : text($value);

} else {
    $files = $_FILES;

    array_walk_recursive($files, function (&$value, $name) {
        if (is_string($value) && is_uploaded_file($value)) {
            $value = file_get_contents($value);
        }
    });

    ksort($_POST, SORT_STRING);
    ksort($files, SORT_STRING);

    $read = text($_POST) . ' ' . text($files);
}

echo hash('sha256', $read);
